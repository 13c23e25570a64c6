// worker::PartStore over the coordinator's Bulk service, on a channel of its own: checkpoints
// never hold up control messages.
//
// While the coordinator is away a call is tried again with back-off, until no attempt has come
// further than those before it for `give_up_after`; an attempt that makes no progress for
// `no_progress` is broken off. What the coordinator refuses is not tried again. What this daemon
// keeps of a checkpoint on its own disk, and the coordinator has the same of, is not fetched. What
// is fetched goes into a file without a name, so memory does not grow with the model. One client a
// session. Thread: any; Cancel ends the running calls and all later ones.
#ifndef ISTHMUS_DAEMON_CHECKPOINT_CLIENT_H_
#define ISTHMUS_DAEMON_CHECKPOINT_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/file/scratch_file.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "daemon/backoff.h"
#include "daemon/net/uplink_gate.h"
#include "daemon/net/watchdog.h"
#include "daemon/state/part_dir.h"
#include "worker/session.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace isthmus::daemon {

struct CheckpointClientOptions {
  std::string coordinator;  // host:port
  std::string buddy_id;     // not empty: `coordinator` is this daemon, which keeps copies of parts
  rpc::Dialling dialling;
  absl::Duration give_up_after = absl::Minutes(5);
  absl::Duration no_progress = absl::Minutes(2);
  BackoffOptions backoff;
  std::string scratch_dir;                 // answers go into files there
  int64_t free_bytes = int64_t{64} << 20;  // that they leave on its file system
  uint64_t seed = 0;                       // of the jitter
  UplinkGate* uplink = nullptr;            // null: none; these outlive the client
  Watchdog* watchdog = nullptr;
  PartDir* parts = nullptr;  // null: nothing is kept on this disk
};

class CheckpointClient : public worker::PartStore {
 public:
  explicit CheckpointClient(CheckpointClientOptions options);

  absl::StatusOr<worker::KeptFile> Keep(const PutCheckpointHeader& header,
                                        const ByteSource& part) override;
  absl::Status Put(const PutCheckpointHeader& header, const ByteSource& part) override;
  absl::StatusOr<worker::FetchedFiles> Fetch(const FetchCheckpointRequest& request) override;

  // Of all calls so far, as far as their best attempts came: grows while something moves.
  int64_t bytes_moved() const;

  void Cancel(const absl::Status& why);

 private:
  std::string Whom() const;
  class Call;
  struct Transfer;  // of one Put or Fetch, over its attempts
  struct Answer;    // to a Fetch
  absl::Status CheckServer(const grpc::ClientContext& context) const;
  absl::Status PutOnce(const PutCheckpointHeader& header, const ByteSource& part,
                       Transfer* transfer);
  absl::Status FetchOnce(const FetchCheckpointRequest& request, Transfer* transfer, Answer* answer);
  absl::Status TakeFirst(int64_t total, std::unique_ptr<ScratchFile>* file) const;
  worker::FetchedFiles FromHere(FetchCheckpointRequest* request);
  worker::FetchedFiles FromPart(const LocalPart& own, const std::vector<LocalPart>& parts,
                                const FetchCheckpointRequest& request);
  void Advance(Transfer* transfer, int64_t bytes);
  bool AwaitTurn(int64_t bytes) const;  // on the uplink; false: cancelled
  std::shared_ptr<grpc::Channel> Channel();
  template <typename F>
  absl::Status Retry(const std::string& what, F attempt);

  const CheckpointClientOptions options_;
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  absl::Time dialled_ ABSL_GUARDED_BY(mutex_);
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t moved_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stopped_{false};  // cancelled_ is set; the uplink's gate asks without a lock
  std::set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_CHECKPOINT_CLIENT_H_
