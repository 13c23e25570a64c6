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
  const auto channel = rpc::MakeChannel(address(), options);
  const auto echo = [&] {  // on one connection
    grpc::ClientContext context;
    ProbeReply reply;
    return rpc::FromGrpc(Peer::NewStub(channel)->Echo(&context, ProbeRequest(), &reply));
  };
  ASSERT_TRUE(echo().ok());
  ASSERT_TRUE(own_->SetRevoked(tls_.Revoke("b")).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(echo())) << "an old connection is no way in";
  const absl::Status refused = Echo(options);
  EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the certificate of b (worker), serial "));
  EXPECT_THAT(refused.message(), HasSubstr("was revoked on 20"));
  EXPECT_TRUE(Echo(To(tls_.Issue("c", Role::kWorker), "a")).ok());
}

TEST_F(TlsTest, AnOlderListChangesNothing) {
  const std::string older = tls_.Revoke("b");
  tls_.Issue("c", Role::kWorker);
  ASSERT_TRUE(own_->SetRevoked(tls_.Revoke("c")).ok());
  EXPECT_THAT(own_->SetRevoked(older).message(), HasSubstr("is older than the one that holds"));
  EXPECT_TRUE(absl::IsUnauthenticated(Echo(To(b_, "a"))));
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

class TlsLinkTest : public TlsTest {
 protected:
  TlsLinkTest()
      : dials_({"b", &board_of_b_, &watchdog_, To(b_, "a").dialling}),
        serves_({"a", &board_, &watchdog_, {}}) {
    plan_ = TwoStagePlan();
    plan_.mutable_ranks(0)->set_node_id("b");
    plan_.mutable_ranks(1)->set_node_id("a");
    plan_.mutable_ranks(1)->set_address(address());
    board_.SetSession(plan_.job_id(), plan_.generation(), DiallersOf(plan_, 1));
  }
  ~TlsLinkTest() override {
    serves_.Cancel(absl::CancelledError("the end"));
    if (session_.joinable()) session_.join();
  }
  void Serve() {
    session_ = std::thread([this] { served_ = serves_.Open(plan_, plan_.links(0), 1, kLong); });
  }
  absl::StatusOr<std::unique_ptr<worker::Link>> Dial() {
    return dials_.Open(plan_, plan_.links(0), 0, kLong);
  }
  // Both ends, open.
  std::unique_ptr<worker::Link> Open() {
    Serve();
    auto link = Dial();
    EXPECT_TRUE(link.ok()) << link.status();
    session_.join();
    EXPECT_TRUE(served_.ok()) << served_.status();
    return link.ok() ? *std::move(link) : nullptr;
  }

  Plan plan_;
  DialBoard board_of_b_;
  GrpcLinkOpener dials_, serves_;
  absl::StatusOr<std::unique_ptr<worker::Link>> served_ = absl::UnknownError("not yet");
  std::thread session_;
};

TEST_F(TlsLinkTest, OpensWhereThePlanSaysSo) {
  EXPECT_EQ(DiallersOf(plan_, 0).size(), 0u);
  EXPECT_NE(Open(), nullptr);
}

TEST_F(TlsLinkTest, EndsWhenTheCertificateOfWhoDialledIsRevoked) {
  const auto link = Open();
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(own_->SetRevoked(tls_.Revoke("b")).ok());
  EXPECT_FALSE((*served_)->Receive(1024, kLong).ok());
  EXPECT_FALSE(link->Receive(1024, kLong).ok());
}

TEST_F(TlsLinkTest, EndsWhenTheCertificateOfWhoServesIsRevoked) {
  const auto link = Open();
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(b_->SetRevoked(tls_.Revoke("a")).ok());
  EXPECT_THAT(link->Receive(1024, kLong).status().message(),
              HasSubstr("the certificate of a (worker) at the other end is revoked"));
}

TEST_F(TlsLinkTest, IsNotOpenedToOneWhoseCertificateIsRevoked) {
  ASSERT_TRUE(b_->SetRevoked(tls_.Revoke("a")).ok());
  Serve();
  EXPECT_THAT(Dial().status().message(),
              HasSubstr("the certificate of a (worker) at the other end is revoked"));
}

}  // namespace
}  // namespace isthmus::daemon
