#include "daemon/renewal.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/rpc/newest_folder.h"
#include "base/tls/folder.h"
#include "base/tls/request.h"
#include "coordinator/service/join_server.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/security_service.grpc.pb.h"
#include "tests/tls_cluster.h"

namespace isthmus::daemon {
namespace {

using testing::HasSubstr;
using tls::Role;

constexpr absl::Duration kLife = absl::Minutes(10);

constexpr rpc::AllowedCall kCalls[] = {{"/isthmus.Security/Revoked", {Role::kWorker}}};

class Answers : public Security::Service {
 public:
  grpc::Status Revoked(grpc::ServerContext*, const RevokedRequest*, RevokedReply*) override {
    return grpc::Status::OK;
  }
};

class RenewalTest : public testing::Test {
 protected:
  void SetUp() override {
    tls_ = authority_.Issue("coordinator", Role::kCoordinator);
    StartJoins();
    Join(tls::Today() - absl::Minutes(7));
  }
  void StartJoins() {
    coordinator::JoinServerOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port_);
    options.ca_dir = authority_.dir();
    options.coordinator_port = 7070;
    options.tls = tls_.get();
    options.audit = &audit_;
    auto server = coordinator::JoinServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->port();
  }
  // As a daemon that joined then.
  void Join(absl::Time then) {
    const auto joins = tls::Joins::Open(authority_.dir());
    tls::TokenOptions options;
    options.addresses = {"a:1"};
    options.certificate_life = kLife;
    const auto token = tls::ReadJoinToken(joins->Create(options, then)->text);
    const std::string key = *tls::MakeKey();
    const auto answer =
        joins->Join({token->id, token->secret, Role::kWorker, *tls::MakeRequest(key)}, then);
    ASSERT_TRUE(answer.ok()) << answer.status();
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ + "/ca.pem") << answer->ca_pem;
    std::ofstream(dir_ + "/cert.pem") << answer->certificate_pem;
    std::ofstream(dir_ + "/key.pem") << key;
    std::filesystem::permissions(dir_ + "/key.pem", std::filesystem::perms(0600));
    std::ofstream(dir_ + "/joined") << "isthmus joined 1\n";
    old_ = answer->certificate;
  }
  RenewalOptions Options() const {
    RenewalOptions options;
    options.tls_dir = dir_;
    options.join = absl::StrCat("127.0.0.1:", port_);
    options.patience = absl::Seconds(60);
    return options;
  }
  absl::StatusOr<tls::Certificate> Renew() {
    grpc::ClientContext context;
    return RenewOnce(Options(), &context, tls::Today());
  }
  tls::Certificate Stored() const {
    const auto folder = tls::ReadFolder(dir_, {Role::kWorker}, tls::Today());
    EXPECT_TRUE(folder.ok()) << folder.status();
    return folder.ok() ? folder->certificate : tls::Certificate();
  }

  TlsCluster authority_;
  const TempDirectory scratch_;
  const std::string dir_ = scratch_.path() + "/tls";
  coordinator::Audit audit_{scratch_.path()};
  std::shared_ptr<rpc::TlsIdentity> tls_;
  int port_ = 0;
  std::unique_ptr<coordinator::JoinServer> server_;
  tls::Certificate old_;
};

TEST(RenewalWaitTest, ItIsDueWhenAThirdIsLeft) {
  tls::Certificate certificate;
  const absl::Time made = absl::FromUnixSeconds(1'800'000'000);
  certificate.from = made - absl::Minutes(10);
  certificate.until = made + absl::Hours(3);
  EXPECT_EQ(RenewalWait(certificate, 0, made), absl::Minutes(1)) << "clocks are set";
  const absl::Time due = made + absl::Hours(2);
  EXPECT_EQ(RenewalWait(certificate, 0, due - absl::Seconds(30)), absl::Seconds(30));
  EXPECT_EQ(RenewalWait(certificate, 0, due), absl::ZeroDuration());
  EXPECT_EQ(RenewalWait(certificate, 1, due), absl::Minutes(3));
  EXPECT_EQ(RenewalWait(certificate, 5, certificate.until + absl::Hours(1)), absl::Seconds(1));
  certificate.until = made + absl::Hours(24 * 300);
  EXPECT_EQ(RenewalWait(certificate, 1, made + absl::Hours(24 * 250)), absl::Minutes(10));
}

TEST_F(RenewalTest, TheFolderHasTheNewOneAndTheSameKey) {
  const auto before = tls::ReadFolder(dir_, {Role::kWorker}, tls::Today());
  const auto renewed = Renew();
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_GT(renewed->until, old_.until);
  EXPECT_EQ(Stored().serial, renewed->serial);
  EXPECT_EQ(rpc::NewestFolder(*before).certificate.serial, renewed->serial);
  EXPECT_EQ(rpc::NewestFolder(*before).key_pem, before->key_pem);
  std::filesystem::remove(dir_ + "/joined");
  EXPECT_EQ(rpc::NewestFolder(*before).certificate.serial, old_.serial)
      << "a folder of `ca issue` is read at the start alone";
}

TEST_F(RenewalTest, WhatCantBeUsedIsNotTaken) {
  const auto before = tls::ReadFolder(dir_, {Role::kWorker}, tls::Today());
  ASSERT_TRUE(Renew().ok());
  std::ofstream(dir_ + "/cert.pem") << "half of it";
  EXPECT_EQ(rpc::NewestFolder(*before).certificate.serial, old_.serial);
  EXPECT_FALSE(Renew().ok());
}

TEST_F(RenewalTest, ARevokedOneIsNotRenewed) {
  authority_.Revoke("node-1");
  const absl::Status refused = Renew().status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was revoked"));
  EXPECT_EQ(Stored().serial, old_.serial);
}

TEST_F(RenewalTest, NobodyThereIsSaid) {
  server_.reset();
  const absl::Status status = Renew().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has to run there with --join-listen"));
}

// Connections that are made after the renewal show the new certificate, at both ends.
TEST_F(RenewalTest, ARunningServerAndItsDialsHaveTheNewOne) {
  const auto own = rpc::TlsIdentity::Load(dir_, {Role::kWorker});
  ASSERT_TRUE(own.ok()) << own.status();
  Answers service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", (*own)->ForServer(kCalls), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  rpc::Dialling dialling;
  dialling.tls = *own;  // it dials itself: client and server
  const auto seen = [&] {
    const auto channel =
        rpc::MakeChannel(absl::StrCat("127.0.0.1:", port), rpc::ToNode(dialling, "node-1"));
    grpc::ClientContext context;
    context.set_deadline(rpc::DeadlineAfter(absl::Seconds(60)));
    RevokedReply reply;
    const grpc::Status status =
        Security::NewStub(channel)->Revoked(&context, RevokedRequest(), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const auto there = rpc::TlsIdentity::ServerOf(context);
    return there == nullptr ? "" : there->serial;
  };
  EXPECT_EQ(seen(), old_.serial);
  const auto renewed = Renew();
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  for (int i = 0; i < 600 && seen() != renewed->serial; ++i) {
    Mutex mutex;
    CondVar never;
    MutexLock lock(&mutex);
    never.WaitUntil(&mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
  }
  EXPECT_EQ(seen(), renewed->serial);
  server->Shutdown();
}

TEST_F(RenewalTest, ItRenewsByItself) {
  const Renewal renewal(Options());  // made seven of ten minutes ago: it is due
  for (int i = 0; i < 6000 && Stored().serial == old_.serial; ++i) {
    Mutex mutex;
    CondVar never;
    MutexLock lock(&mutex);
    never.WaitUntil(&mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
  }
  EXPECT_NE(Stored().serial, old_.serial);
}

}  // namespace
}  // namespace isthmus::daemon
