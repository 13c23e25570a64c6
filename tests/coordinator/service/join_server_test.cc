// The port where hosts join, as strangers, hosts and daemons see it.
#include "coordinator/service/join_server.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/tls/request.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/join.grpc.pb.h"
#include "tests/tls_cluster.h"

namespace isthmus::coordinator {
namespace {

using testing::HasSubstr;
using testing::Not;
using tls::Role;

class JoinServerTest : public testing::Test {
 protected:
  void Start(const JoinLimits& limits) {
    if (tls_ == nullptr) tls_ = authority_.Issue("coordinator", Role::kCoordinator);
    JoinServerOptions options;
    options.listen = "127.0.0.1:0";
    options.ca_dir = authority_.dir();
    options.coordinator_port = 7070;
    options.tls = tls_.get();
    options.audit = &audit_;
    options.limits = limits;
    auto server = JoinServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void SetUp() override { Start({}); }

  std::string Make(int uses = 1, absl::Duration certificate_life = absl::Hours(24)) {
    tls::TokenOptions options;
    options.addresses = {"a:1"};
    options.uses = uses;
    options.certificate_life = certificate_life;
    const auto made = tls::Joins::Open(authority_.dir())->Create(options, tls::Today());
    EXPECT_TRUE(made.ok()) << made.status();
    return made->text;
  }
  // As a host that has no certificate, and knows the authority.
  std::shared_ptr<grpc::Channel> Stranger() {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride(tls::kAnyCoordinator);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        Address(), grpc::SslCredentials({tls_->folder().ca_pem, "", ""}), arguments);
  }
  std::string Address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  static JoinRequest RequestOf(const std::string& text, const std::string& key) {
    const auto token = tls::ReadJoinToken(text);
    JoinRequest request;
    request.set_token_id(token->id);
    request.set_secret(token->secret);
    request.set_role("worker");
    request.set_request_pem(*tls::MakeRequest(key));
    return request;
  }
  absl::StatusOr<JoinReply> Ask(const JoinRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineAfter(absl::Seconds(60)));
    JoinReply reply;
    const grpc::Status status = Join::NewStub(Stranger())->Join(&context, request, &reply);
    if (!status.ok()) return rpc::FromGrpc(status);
    return reply;
  }
  static absl::StatusOr<JoinReply> Renew(const std::shared_ptr<grpc::Channel>& channel,
                                         const std::string& key) {
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineAfter(absl::Seconds(60)));
    RenewRequest request;
    request.set_request_pem(*tls::MakeRequest(key));
    JoinReply reply;
    const grpc::Status status = Join::NewStub(channel)->Renew(&context, request, &reply);
    if (!status.ok()) return rpc::FromGrpc(status);
    return reply;
  }
  std::shared_ptr<grpc::Channel> As(const std::string& key, const std::string& certificate) {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride(tls::kAnyCoordinator);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        Address(), grpc::SslCredentials({tls_->folder().ca_pem, key, certificate}), arguments);
  }

  TlsCluster authority_;
  const TempDirectory state_;
  Audit audit_{state_.path()};
  std::shared_ptr<rpc::TlsIdentity> tls_;
  std::unique_ptr<JoinServer> server_;
  const std::string key_ = *tls::MakeKey();
};

TEST_F(JoinServerTest, AHostJoinsAndItIsWrittenDownWithoutTheSecret) {
  const std::string text = Make();
  const JoinRequest request = RequestOf(text, key_);
  const auto reply = Ask(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->coordinator_port(), 7070);
  const auto certificate =
      tls::CheckAnswer(reply->certificate_pem(), key_, tls_->folder().ca_pem, tls::Today());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(certificate->who.name, "node-1");
  const absl::Status again = Ask(RequestOf(text, *tls::MakeKey())).status();
  EXPECT_TRUE(absl::IsPermissionDenied(again)) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("is used up"));
  JoinRequest guess = request;
  guess.set_secret(std::string(tls::kTokenSecretBytes, 'x'));
  EXPECT_EQ(Ask(guess).status(), tls::UnknownToken());

  const auto entries = audit_.Last(10);
  ASSERT_EQ(entries->entries_size(), 3);
  const std::string id = absl::BytesToHexString(request.token_id());
  EXPECT_EQ(entries->entries(0).call(), "Join.Join");
  EXPECT_EQ(entries->entries(0).what(),
            absl::StrCat("token ", id, ": node-1 (worker), serial ", certificate->serial));
  EXPECT_THAT(entries->entries(0).peer(), HasSubstr("127.0.0.1"));
  EXPECT_EQ(entries->entries(1).who(), "token " + id) << "who has one of ours";
  EXPECT_THAT(entries->entries(1).outcome(), HasSubstr("is used up"));
  EXPECT_EQ(entries->entries(2).who(), "") << "a stranger";
  std::string all;
  for (const AuditEntry& each : entries->entries()) all += each.DebugString();
  EXPECT_THAT(all, Not(HasSubstr(request.secret())));
  EXPECT_THAT(all, Not(HasSubstr(absl::BytesToHexString(request.secret()))));
}

TEST_F(JoinServerTest, WhatIsNoRequestIsRefusedInWords) {
  JoinRequest request = RequestOf(Make(), key_);
  request.set_role("root");
  EXPECT_THAT(std::string(Ask(request).status().message()), HasSubstr("there is no role 'root'"));
  request.set_role("operator");
  EXPECT_THAT(std::string(Ask(request).status().message()), HasSubstr("lets in a worker and no"));
  request.set_role("worker");
  JoinRequest other = request;
  other.set_request_pem("none");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(other).status()));
  other = request;
  other.set_token_id(std::string(1000, 'x'));
  EXPECT_EQ(Ask(other).status(), tls::UnknownToken());
  other = request;
  other.set_secret(std::string(kMaxJoinBytes, 'x'));
  const absl::Status large = Ask(other).status();
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large << ": gRPC does not take it";
  EXPECT_TRUE(Ask(request).ok()) << "what was refused used nothing up";
}

TEST_F(JoinServerTest, AStrangerReachesNothingElse) {
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineAfter(absl::Seconds(60)));
  ListJobsReply reply;
  EXPECT_EQ(Jobs::NewStub(Stranger())->List(&context, ListJobsRequest(), &reply).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(absl::IsUnauthenticated(Renew(Stranger(), key_).status()));
}

TEST_F(JoinServerTest, TriesHaveABound) {
  server_.reset();
  Start({2, 100, 8});
  JoinRequest request = RequestOf(Make(), key_);
  request.set_secret("a guess");
  EXPECT_EQ(Ask(request).status(), tls::UnknownToken());
  EXPECT_EQ(Ask(request).status(), tls::UnknownToken());
  const absl::Status third = Ask(RequestOf(Make(), key_)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(third)) << third;
  EXPECT_THAT(std::string(third.message()), HasSubstr("127.0.0.1 has tried to join 2 times"));
}

TEST_F(JoinServerTest, ADaemonRenewsItsOwnCertificateUnlessItIsRevoked) {
  // Made ten minutes ago, of which five are over since: half of its life.
  const auto made = tls::Joins::Open(authority_.dir());
  tls::TokenOptions options;
  options.addresses = {"a:1"};
  options.certificate_life = absl::Minutes(10);
  const absl::Time before = tls::Today() - absl::Minutes(6);
  const auto token = tls::ReadJoinToken(made->Create(options, before)->text);
  const auto old =
      made->Join({token->id, token->secret, Role::kWorker, *tls::MakeRequest(key_)}, before);
  ASSERT_TRUE(old.ok()) << old.status();
  const auto channel = As(key_, old->certificate_pem);
  const auto renewed = Renew(channel, key_);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  const auto certificate =
      tls::CheckAnswer(renewed->certificate_pem(), key_, old->ca_pem, tls::Today());
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(certificate->who.name, "node-1");
  EXPECT_GT(certificate->until, old->certificate.until);
  EXPECT_THAT(std::string(Renew(As(key_, renewed->certificate_pem()), key_).status().message()),
              HasSubstr("more than half of its life is to come"));

  authority_.Revoke("node-1");
  const absl::Status refused = Renew(channel, key_).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr("revoked"));
  const auto entries = audit_.Last(10);
  EXPECT_EQ(entries->entries(0).who(), "node-1");
  EXPECT_EQ(entries->entries(0).call(), "Join.Renew");
}

TEST_F(JoinServerTest, APersonsCertificateIsNotRenewed) {
  const auto ada = authority_.Issue("ada", Role::kOperator);
  const tls::Folder& folder = ada->folder();
  EXPECT_THAT(
      std::string(Renew(As(folder.key_pem, folder.certificate_pem), key_).status().message()),
      HasSubstr("only a daemon's is"));
}

TEST_F(JoinServerTest, AnotherAuthorityThanItsOwnIsRefused) {
  TlsCluster other;
  JoinServerOptions options;
  options.listen = "127.0.0.1:0";
  options.ca_dir = other.dir();
  options.tls = tls_.get();
  options.audit = &audit_;
  const auto server = JoinServer::Start(options);
  EXPECT_TRUE(absl::IsInvalidArgument(server.status()));
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("is another authority than that"));
  options.ca_dir = state_.path();
  EXPECT_TRUE(absl::IsNotFound(JoinServer::Start(options).status()));
}

}  // namespace
}  // namespace isthmus::coordinator
