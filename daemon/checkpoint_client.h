// worker::CheckpointStore over the coordinator's Bulk service, on a channel of its own: checkpoints
// never hold up control messages.
//
// While the coordinator is away a call is tried again with back-off, up to `give_up_after` in all;
// a call that makes no progress for `no_progress` is broken off and tried again. What the
// coordinator refuses is not tried again. One client a session. Thread: any; Cancel ends the
// running calls and all later ones.
#ifndef ISTHMUS_DAEMON_CHECKPOINT_CLIENT_H_
#define ISTHMUS_DAEMON_CHECKPOINT_CLIENT_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"
#include "daemon/backoff.h"
#include "daemon/watchdog.h"
#include "worker/session.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace isthmus::daemon {

struct CheckpointClientOptions {
  std::string coordinator;  // host:port
  bool use_proxy = false;
  absl::Duration give_up_after = absl::Minutes(5);
  absl::Duration no_progress = absl::Minutes(2);  // 8 MiB in flight at 0.6 Mbit/s
  BackoffOptions backoff;
  int64_t max_fetch_bytes = int64_t{16} << 30;  // one answer, held in memory
  uint64_t seed = 0;                            // of the jitter
  Watchdog* watchdog = nullptr;                 // outlives the client
};

class CheckpointClient : public worker::CheckpointStore {
 public:
  explicit CheckpointClient(CheckpointClientOptions options);

  absl::Status Put(const PutCheckpointHeader& header, absl::string_view bytes) override;
  absl::StatusOr<std::string> Fetch(const FetchCheckpointRequest& request) override;

  void Cancel(const absl::Status& why);

 private:
  class Call;
  absl::Status PutOnce(const PutCheckpointHeader& header, absl::string_view bytes);
  absl::Status FetchOnce(const FetchCheckpointRequest& request, std::string* bytes);
  template <typename F>
  absl::Status Retry(const std::string& what, F attempt);

  const CheckpointClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  CondVar changed_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_CHECKPOINT_CLIENT_H_
