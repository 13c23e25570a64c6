// A daemon's server over TLS, and whoever dials it with the wrong certificate, or none.
#include <sys/prctl.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/tls/handshake.h"
#include "daemon/net/dial_board.h"
#include "daemon/net/link_opener.h"
#include "daemon/net/peer_service.h"
#include "daemon/net/watchdog.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"
#include "proto/peer_service.grpc.pb.h"
#include "tests/daemon/net/loopback_cluster.h"
#include "tests/tls_cluster.h"

namespace isthmus::daemon {
namespace {

using testing::HasSubstr;
using tls::Role;

constexpr absl::Duration kLong = absl::Seconds(60);

class TlsTest : public testing::Test {
 protected:
  TlsTest() : own_(tls_.Issue("a", Role::kWorker)), b_(tls_.Issue("b", Role::kWorker)) {
    PeerServerOptions options;
    options.node_id = "a";
    options.tls = own_;
    options.board = &board_;
    options.watchdog = &watchdog_;
    server_ = PeerServer::Start(options).value();
  }
  ~TlsTest() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  static rpc::ChannelOptions To(const std::shared_ptr<rpc::TlsIdentity>& identity,
                                const std::string& node) {
    rpc::Dialling dialling;
    dialling.tls = identity;
    return rpc::ToNode(dialling, node);
  }
  absl::Status Echo(const rpc::ChannelOptions& options) {
    const auto stub = Peer::NewStub(rpc::MakeChannel(address(), options));
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineAfter(kLong));
    ProbeReply reply;
    return rpc::FromGrpc(stub->Echo(&context, ProbeRequest(), &reply));
  }
  // The words for one who finds no connection.
  std::string Why(const rpc::ChannelOptions& options) {
    EXPECT_TRUE(absl::IsUnavailable(Echo(options)));
    return rpc::WhyNoConnection(address(), options, kLong);
  }

  TlsCluster tls_;
  std::shared_ptr<rpc::TlsIdentity> own_, b_;
  DialBoard board_;
  Watchdog watchdog_;
  std::unique_ptr<PeerServer> server_;
};

TEST_F(TlsTest, TheTableHasEveryCall) {
  const std::set<std::string> calls = CallsIn(ISTHMUS_SOURCE_DIR "/proto/peer_service.proto");
  for (const std::string& call : calls) {
    EXPECT_TRUE(rpc::CheckCall(AllowedPeerCalls(), {"a", Role::kWorker}, call).ok()) << call;
    EXPECT_FALSE(rpc::CheckCall(AllowedPeerCalls(), {"a", Role::kOperator}, call).ok()) << call;
  }
  EXPECT_EQ(AllowedPeerCalls().size(), calls.size()) << "a call that is no more";
}

TEST_F(TlsTest, AWorkerOfTheAuthorityIsLetIn) {
  EXPECT_TRUE(Echo(To(b_, "a")).ok());
  EXPECT_EQ(rpc::WhyNoConnection(address(), To(b_, "a"), kLong), "") << "nothing stands in the way";
}

TEST_F(TlsTest, AProcessWithAKeyLeavesNoCoreDump) { EXPECT_EQ(::prctl(PR_GET_DUMPABLE), 0); }

TEST_F(TlsTest, APersonIsNotLetIn) {
  const absl::Status refused = Echo(To(tls_.Issue("ada", Role::kOperator), "a"));
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("ada (operator) may not call Peer.Echo"));
}

TEST_F(TlsTest, PlainTextIsNotTaken) {
  EXPECT_THAT(Why(rpc::ChannelOptions()),
              HasSubstr(address() + " speaks TLS alone, and this program has no certificate"));
}

TEST_F(TlsTest, AnotherAuthorityIsNotTrusted) {
  TlsCluster others;
  EXPECT_THAT(Why(To(others.Issue("b", Role::kWorker), "a")),
              HasSubstr("(a (worker)) is of another authority than this --tls-dir"));
}

TEST_F(TlsTest, ACertificateOfAnotherAuthorityIsNotTaken) {
  // It trusts this server, which does not trust it.
  TlsCluster others;
  tls::Folder stranger = others.Issue("b", Role::kWorker)->folder();
  stranger.ca_pem = own_->folder().ca_pem;
  EXPECT_THAT(tls::HandshakeFault(address(), &stranger, "a.worker.isthmus", kLong),
              HasSubstr("does not take the certificate of b (worker)"));
}

TEST_F(TlsTest, AnotherNodesNameIsNotTaken) {
  EXPECT_THAT(Why(To(b_, "c")), HasSubstr("(a (worker)) is not that of c.worker.isthmus"));
}

TEST_F(TlsTest, WhatIsRevokedIsRefusedFromThenOn) {
  const auto options = To(b_, "a");
  ASSERT_TRUE(Echo(options).ok());
  const auto stub = Peer::NewStub(rpc::MakeChannel(address(), options));
  ASSERT_TRUE(own_->SetRevoked(tls_.Revoke("b")).ok());
  const absl::Status refused = Echo(options);
  EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the certificate of b (worker), serial "));
  EXPECT_THAT(refused.message(), HasSubstr("was revoked on 20"));
  EXPECT_TRUE(Echo(To(tls_.Issue("c", Role::kWorker), "a")).ok());
}

TEST_F(TlsTest, AListOfAnotherAuthorityChangesNothing) {
  ASSERT_TRUE(own_->SetRevoked(tls_.Revoke("b")).ok());
  TlsCluster others;
  others.Issue("c", Role::kWorker);
  EXPECT_TRUE(absl::IsInvalidArgument(own_->SetRevoked(others.Revoke("c"))));
  EXPECT_TRUE(absl::IsUnauthenticated(Echo(To(b_, "a"))));
}

TEST_F(TlsTest, WhoSpeaksTlsIsToldOfPlainText) {
  LoopbackCluster plain(1);
  const std::string there = absl::StrCat("127.0.0.1:", plain.server(0)->port());
  EXPECT_THAT(rpc::WhyNoConnection(there, To(b_, "a"), kLong),
              HasSubstr(there + " speaks plain text, and this program TLS alone"));
}

TEST_F(TlsTest, NobodyDialsForAnother) {
  const auto stub = Peer::NewStub(rpc::MakeChannel(address(), To(b_, "a")));
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineAfter(kLong));
  const auto stream = stub->Link(&context);
  LinkChunk hello;
  hello.mutable_hello()->set_job_id("job");
  hello.mutable_hello()->set_link_id("b0");
  hello.mutable_hello()->set_from_node_id("c");
  stream->Write(hello);
  const absl::Status refused = rpc::FromGrpc(stream->Finish());
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_EQ(refused.message(), "the certificate is that of node b, the link that of node c");
}

TEST_F(TlsTest, ALinkOpensOverTls) {
  Plan plan = TwoStagePlan();
  plan.mutable_ranks(0)->set_node_id("b");
  plan.mutable_ranks(1)->set_node_id("a");
  plan.mutable_ranks(1)->set_address(address());
  EXPECT_EQ(DiallersOf(plan, 0).size(), 0u);
  board_.SetSession(plan.job_id(), plan.generation(), DiallersOf(plan, 1));
  DialBoard board_of_b;
  rpc::Dialling dialling;
  dialling.tls = b_;
  GrpcLinkOpener dials({"b", &board_of_b, &watchdog_, dialling});
  GrpcLinkOpener serves({"a", &board_, &watchdog_, {}});
  absl::Status served;
  std::thread session([&] { served = serves.Open(plan, plan.links(0), 1, kLong).status(); });
  EXPECT_EQ(dials.Open(plan, plan.links(0), 0, kLong).status(), absl::OkStatus());
  session.join();
  EXPECT_EQ(served, absl::OkStatus());
}

}  // namespace
}  // namespace isthmus::daemon
