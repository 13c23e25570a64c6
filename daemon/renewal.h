// Renews the certificate of a daemon that joined, when a third of its life is left: with the same
// key, over TLS with the certificate that is to be renewed. It replaces cert.pem in the folder;
// connections that are made from then on use it (base/rpc/newest_folder.h). Thread: one owner; a
// thread of its own waits and asks.
#ifndef ISTHMUS_DAEMON_RENEWAL_H_
#define ISTHMUS_DAEMON_RENEWAL_H_

#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/tls/certificate.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace isthmus::daemon {

struct RenewalOptions {
  std::string tls_dir;
  std::string join;  // host:port of the coordinator's --join-listen
  bool use_proxy = false;
  absl::Duration patience = absl::Seconds(20);  // of one call
};

// How long to wait before the next look: until it is due, at most a minute (clocks are set); after
// failures a twentieth of what is left, 1 s to 10 min.
absl::Duration RenewalWait(const tls::Certificate& certificate, int failures, absl::Time now);

// One try; `context` is a new one, which may be cancelled meanwhile. The certificate that lies
// there afterwards. Unavailable: nobody answers. PermissionDenied: it is not renewed, and why.
// Unauthenticated: what was answered can't be used.
absl::StatusOr<tls::Certificate> RenewOnce(const RenewalOptions& options,
                                           grpc::ClientContext* context, absl::Time now);

class Renewal {
 public:
  explicit Renewal(RenewalOptions options);
  ~Renewal();  // breaks off a call that runs
  Renewal(const Renewal&) = delete;
  Renewal& operator=(const Renewal&) = delete;

 private:
  void Loop();
  bool Wait(absl::Duration duration);  // false: it ends
  absl::Status Try();

  const RenewalOptions options_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_RENEWAL_H_
