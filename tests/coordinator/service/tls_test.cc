// The coordinator over TLS: who may what, and what becomes of one whose certificate is revoked.
#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/service/allowed_calls.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/caller.h"
#include "coordinator/service/security_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/security_service.grpc.pb.h"
#include "tests/coordinator/service/service_fixture.h"
#include "tests/tls_cluster.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using tls::Role;

TEST(AllowedCallsTest, EachCallIsSomebodysAndNobodyHasAll) {
  std::set<std::string> calls = CallsIn(ISTHMUS_SOURCE_DIR "/proto/control_service.proto");
  calls.merge(CallsIn(ISTHMUS_SOURCE_DIR "/proto/security_service.proto"));
  calls.merge(CallsIn(ISTHMUS_SOURCE_DIR "/proto/comparison_service.proto"));
  for (const std::string& call : calls) {
    const auto may = [&](Role role) {
      return rpc::CheckCall(AllowedCalls(), {"x", role}, call).ok();
    };
    const bool daemons = call == "/isthmus.Control/Session" || call == "/isthmus.Security/Revoked";
    EXPECT_EQ(may(Role::kOperator), !daemons) << call;
    EXPECT_FALSE(may(Role::kCoordinator)) << call;
    EXPECT_FALSE(may(Role::kViewer) && may(Role::kWorker)) << call;
  }
  EXPECT_EQ(AllowedCalls().size(), calls.size()) << "a call that is no more";
}

class TlsServiceTest : public ServiceTest {
 protected:
  void SetUp() override {
    tls_ = authority_.Issue("coordinator", Role::kCoordinator);
    to_ = To("ada", Role::kOperator);
    ServiceTest::SetUp();
  }
  rpc::ChannelOptions To(const std::string& name, Role role) {
    rpc::Dialling dialling;
    dialling.tls = authority_.Issue(name, role);
    return rpc::ToCoordinator(dialling);
  }
  // With a certificate for `name`; the node is `node`.
  std::unique_ptr<FakeDaemon> TlsDaemon(const std::string& name, const std::string& node) {
    return Daemon(node, [&](FakeDaemon::Options* options) {
      options->node.set_id(node);
      options->to = To(name, Role::kWorker);
    });
  }
  void DialAs(const std::string& name, Role role) {
    channel_ = rpc::MakeChannel(address(), To(name, role));
    jobs_ = Jobs::NewStub(channel_);
    bulk_ = Bulk::NewStub(channel_);
  }
  // The list that a daemon is told who has that of hash `have`.
  RevokedReply Revoked(uint64_t have) {
    grpc::ClientContext context;
    RevokedRequest request;
    request.set_have(have);
    RevokedReply reply;
    EXPECT_TRUE(Security::NewStub(channel_)->Revoked(&context, request, &reply).ok());
    return reply;
  }
  absl::Status Stop() {
    StopJobRequest request;
    request.set_job("bible");
    request.set_now(true);
    return Call<StopJobRequest, StopJobReply>(&Jobs::Stub::Stop, request).status();
  }
  AuditReply Audited() {
    grpc::ClientContext context;
    AuditRequest request;
    request.set_last(100);
    AuditReply reply;
    EXPECT_TRUE(Security::NewStub(channel_)->Audit(&context, request, &reply).ok());
    return reply;
  }

  TlsCluster authority_;
};

TEST_F(TlsServiceTest, ARoleDoesWhatIsItsAndTheAuditTellsWhoDidWhat) {
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  StartTwo(a.get(), b.get(), TwoStages());
  DialAs("bob", Role::kViewer);
  EXPECT_EQ(Status().state(), JOB_RUNNING) << "a viewer looks";
  EXPECT_EQ(Stop().message(),
            "bob (viewer) may not call Jobs.Stop: that takes a certificate of role operator");
  DialAs("c", Role::kWorker);
  const absl::Status submitted = Submit(TwoStages()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(submitted));
  EXPECT_THAT(submitted.message(), HasSubstr("c (worker) may not call Jobs.Submit"));
  EXPECT_EQ(FetchAll(Export("bible-1")).status.message(),
            "node c has no rank in the plan of job bible-1: it may neither store nor fetch "
            "checkpoints of it");
  DialAs("ada", Role::kOperator);
  EXPECT_EQ(Status().state(), JOB_RUNNING) << "the job is unharmed";
  EXPECT_TRUE(Stop().ok());

  const AuditReply audit = Audited();
  ASSERT_EQ(audit.entries_size(), 5);
  const auto is = [&](int i, const std::string& who, const std::string& call,
                      const std::string& what) {
    const AuditEntry& entry = audit.entries(i);
    EXPECT_EQ(absl::StrCat(entry.who(), " ", entry.call(), " ", entry.what()),
              absl::StrCat(who, " ", call, " ", what));
    return entry.outcome();
  };
  EXPECT_EQ(is(0, "ada", "Jobs.Submit", "bible"), "ok");
  EXPECT_THAT(audit.entries(0).peer(), HasSubstr("127.0.0.1"));
  EXPECT_THAT(is(1, "bob", "Jobs.Stop", ""), HasSubstr("may not call"));
  EXPECT_THAT(is(2, "c", "Jobs.Submit", ""), HasSubstr("may not call"));
  EXPECT_THAT(is(3, "c", "Bulk.FetchCheckpoint", "bible-1"), HasSubstr("has no rank"));
  EXPECT_EQ(is(4, "ada", "Jobs.Stop", "bible"), "ok");
}

TEST_F(TlsServiceTest, ADaemonOfTheJobFetches) {
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  EXPECT_TRUE(PutAll(plan, 5)) << "an operator may store all";
  DialAs("a", Role::kWorker);
  EXPECT_TRUE(FetchAll(Export(plan.job_id())).sound);
}

TEST_F(TlsServiceTest, ADaemonActsForItsOwnNodeAlone) {
  auto own = TlsDaemon("a", "a");
  EXPECT_TRUE(own->registered().ok());
  auto other = TlsDaemon("b", "a");
  EXPECT_TRUE(absl::IsFailedPrecondition(other->registered().status()));
  EXPECT_THAT(other->registered().status().message(),
              HasSubstr("the certificate is that of node b, the registration that of a"));
  const auto alive = [this] { return Nodes().nodes(0).alive(); };
  EXPECT_TRUE(Eventually(alive)) << "the one that it would have been is unharmed";
  EXPECT_EQ(Nodes().nodes_size(), 1);
}

TEST_F(TlsServiceTest, WhoIsRevokedIsGoneFromARunningJob) {
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  JobSpec job = TwoStages();
  job.mutable_recovery()->set_automatic(false);
  StartTwo(a.get(), b.get(), job);
  const std::string pem = authority_.Revoke("b");
  EXPECT_TRUE(absl::IsCancelled(b->NextStart().status())) << "its stream ended";
  EXPECT_TRUE(Becomes(JOB_FAILED));
  EXPECT_THAT(Status().reason(), HasSubstr("the certificate of daemon b, serial "));
  EXPECT_TRUE(a->NextStop().ok());
  std::string warnings;
  const ListNodesReply nodes = Nodes();
  for (const NodeStatus& node : nodes.nodes())
    absl::StrAppend(&warnings, node.node().name(), ": ", absl::StrJoin(node.warnings(), ", "), ";");
  EXPECT_THAT(warnings, HasSubstr("b: its certificate is revoked"));
  EXPECT_THAT(warnings, testing::Not(HasSubstr("a: its certificate")));
  EXPECT_TRUE(TlsDaemon("b", "b")->registered().ok()) << "a new certificate of the same name holds";
}

TEST_F(TlsServiceTest, WhoIsRevokedWhileNobodyHearsItIsGoneFromItsJob) {
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  JobSpec job = TwoStages();
  job.mutable_recovery()->set_automatic(false);
  StartTwo(a.get(), b.get(), job);
  b->Vanish();  // its session may train on
  ASSERT_TRUE(Eventually([this] {
    int alive = 0;
    const ListNodesReply reply = Nodes();
    for (const NodeStatus& node : reply.nodes()) alive += node.alive();
    return alive == 1;
  }));
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  authority_.Revoke("b");
  EXPECT_TRUE(Becomes(JOB_FAILED));
  EXPECT_THAT(Status().reason(), HasSubstr("the certificate of daemon b, serial "));
}

TEST_F(TlsServiceTest, ARevokedKeyHarmsNobodyWhoHasAnother) {
  const auto lost = To("b", Role::kWorker);  // of the same name, before
  const std::string serial = lost.dialling.tls->folder().certificate.serial;
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  StartTwo(a.get(), b.get(), TwoStages());
  authority_.Revoke(serial);
  EXPECT_TRUE(Eventually([&] { return tls_->IsRevoked(serial); }));
  b->Vanish();
  ASSERT_TRUE(Eventually([this] {
    int alive = 0;
    const ListNodesReply reply = Nodes();
    for (const NodeStatus& node : reply.nodes()) alive += node.alive();
    return alive == 1;
  }));
  auto thief = Daemon("b", [&](FakeDaemon::Options* options) {
    options->node.set_id("b");
    options->to = lost;
  });
  EXPECT_TRUE(absl::IsUnauthenticated(thief->registered().status()));
  EXPECT_EQ(Status().state(), JOB_RUNNING);
}

TEST_F(TlsServiceTest, ADaemonStoresPartsOfItsOwnStage) {
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  const int other = plan.ranks(0).node_id() == "a" ? 1 : 0;
  DialAs("a", Role::kWorker);
  const absl::Status refused = Put(plan, 5, other, "state.json", State(plan, 5)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("node a holds neither stage"));
  EXPECT_TRUE(Put(plan, 5, 1 - other, "state.json", State(plan, 5)).ok());
}

TEST_F(TlsServiceTest, WhoIsRevokedWatchesNoLonger) {
  auto a = TlsDaemon("a", "a"), b = TlsDaemon("b", "b");
  StartTwo(a.get(), b.get(), TwoStages());
  DialAs("bob", Role::kViewer);
  WatchRequest watch;
  watch.set_job("bible");
  watch.set_follow(true);
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineAfter(absl::Seconds(60)));
  const auto stream = jobs_->Watch(&context, watch);
  WatchReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  authority_.Revoke("bob");
  while (stream->Read(&reply)) {
  }
  const absl::Status ended = rpc::FromGrpc(stream->Finish());
  EXPECT_TRUE(absl::IsUnauthenticated(ended)) << ended;
  EXPECT_THAT(ended.message(), HasSubstr("the certificate of bob (viewer)"));
}

TEST_F(TlsServiceTest, ALostListChangesNothing) {
  const std::string file = authority_.dir() + "/certificates/coordinator/revoked.pem";
  auto b = TlsDaemon("b", "b");
  const std::string pem = authority_.Revoke("b");
  ASSERT_TRUE(absl::IsCancelled(b->NextStart().status()));
  std::filesystem::remove(file);
  EXPECT_FALSE(tls_->RereadRevoked().ok());
  EXPECT_EQ(tls_->revoked_pem(), pem);
  EXPECT_EQ(Nodes().nodes_size(), 1) << "and calls are let in as before";
}

TEST_F(TlsServiceTest, DaemonsAreToldTheListWhenItIsAnother) {
  DialAs("a", Role::kWorker);
  const std::string before = Revoked(0).pem();
  EXPECT_TRUE(Revoked(Hash64(before)).same());
  authority_.Issue("b", Role::kWorker);
  const std::string pem = authority_.Revoke("b");
  EXPECT_TRUE(Eventually([&] { return Revoked(Hash64(before)).pem() == pem; }));
}

TEST_F(ServiceTest, NodesTellsThatNobodyIsAskedForACertificate) {
  const auto told = [this] {
    grpc::ClientContext context;
    ListNodesReply reply;
    EXPECT_TRUE(jobs_->Nodes(&context, ListNodesRequest(), &reply).ok());
    return context.GetServerInitialMetadata().count(rpc::kInsecureHeader) > 0;
  };
  EXPECT_FALSE(told());
  Close();
  insecure_ = true;
  Open();
  EXPECT_TRUE(told());
}

}  // namespace
}  // namespace isthmus::coordinator
