#include "daemon/revoked_watch.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/tls_cluster.h"

namespace isthmus::daemon {
namespace {

constexpr rpc::AllowedCall kCalls[] = {{"/isthmus.Security/Revoked", {tls::Role::kWorker}}};

class Lists : public Security::Service {
 public:
  explicit Lists(std::string pem) : pem_(std::move(pem)) {}
  grpc::Status Revoked(grpc::ServerContext*, const RevokedRequest* request,
                       RevokedReply* reply) override {
    reply->set_same(request->have() == Hash64(pem_));
    if (reply->same()) told_ = true;
    if (!reply->same()) reply->set_pem(pem_);
    return grpc::Status::OK;
  }
  bool told() const { return told_; }  // the asker has it

 private:
  const std::string pem_;
  std::atomic<bool> told_{false};
};

TEST(RevokedWatchTest, TheListOfTheCoordinatorHoldsAtTheDaemonToo) {
  TlsCluster authority;
  const auto coordinator = authority.Issue("c", tls::Role::kCoordinator);
  const auto own = authority.Issue("a", tls::Role::kWorker);
  const auto lost = authority.Issue("lost", tls::Role::kWorker);
  Lists lists(authority.Revoke("lost"));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", coordinator->ForServer(kCalls), &port);
  builder.RegisterService(&lists);
  const auto server = builder.BuildAndStart();
  Health health;
  RevokedWatchOptions options;
  options.coordinator = absl::StrCat("127.0.0.1:", port);
  options.dialling.tls = own;
  options.tls = own;
  options.health = &health;
  options.every = absl::Milliseconds(10);
  EXPECT_TRUE(own->CheckRevoked(lost->folder().certificate).ok());
  {
    RevokedWatch watch(options);
    for (int i = 0; i < 6000 && !lists.told(); ++i) {
      Mutex mutex;
      CondVar never;
      MutexLock lock(&mutex);
      never.WaitUntil(&mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
    }
    health.Ending();
  }
  EXPECT_TRUE(absl::IsUnauthenticated(own->CheckRevoked(lost->folder().certificate)));
  EXPECT_TRUE(own->CheckRevoked(own->folder().certificate).ok());
  server->Shutdown();
}

}  // namespace
}  // namespace isthmus::daemon
