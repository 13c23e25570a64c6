// Asks the coordinator which certificates hold no longer, as often as heartbeats go out: the
// daemon's server then refuses them. While the coordinator is away the last list holds. Thread: one
// owner; a thread of its own asks.
#ifndef ISTHMUS_DAEMON_REVOKED_WATCH_H_
#define ISTHMUS_DAEMON_REVOKED_WATCH_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "base/rpc/tls_identity.h"
#include "daemon/health.h"
#include "proto/security_service.grpc.pb.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace isthmus::daemon {

struct RevokedWatchOptions {
  std::string coordinator;  // host:port
  rpc::Dialling dialling;
  std::shared_ptr<rpc::TlsIdentity> tls;  // gets the list
  Health* health = nullptr;               // outlives the watch
  absl::Duration every = absl::Seconds(3);
};

class RevokedWatch {
 public:
  explicit RevokedWatch(RevokedWatchOptions options);
  ~RevokedWatch();  // breaks off a call that runs

 private:
  void Loop();
  bool Ask(Security::StubInterface* stub);  // false: no answer

  const RevokedWatchOptions options_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_REVOKED_WATCH_H_
