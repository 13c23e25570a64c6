// Puts parts of checkpoints that this daemon keeps to the coordinator, when that asks for them: all
// of one lie on daemons, and the coordinator has not got them all (a daemon was killed before its
// Put, or the coordinator was away until its sessions gave up).
//
// One after the other, on a thread of its own and never beside a session: a session that begins
// breaks off what is under way, and the coordinator asks again. A part that can't be sent is logged
// and left; one that can't be read from the disk is disowned as well: what the daemon tells next
// does not name it, so that nobody waits for it. Thread: any. Bounds: kMaxAsked; a
// piece of a file in memory.
#ifndef ISTHMUS_DAEMON_PART_SENDER_H_
#define ISTHMUS_DAEMON_PART_SENDER_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "daemon/checkpoint_client.h"
#include "daemon/health.h"
#include "daemon/state/part_dir.h"
#include "proto/control.pb.h"

namespace isthmus::daemon {

class PartSender {
 public:
  static constexpr size_t kMaxAsked = 16;

  // The pointers outlive it.
  PartSender(PartDir* parts, CheckpointClientOptions options, Health* health);
  ~PartSender();  // Stop

  void Ask(const KeptPart& part);  // nothing for one that waits or is under way
  void BreakOff(const std::string& why);
  void Stop();

 private:
  void Loop();
  absl::Status Send(const KeptPart& part, CheckpointClient* client);
  absl::Status Disown(const KeptPart& part, const absl::Status& why);

  PartDir* const parts_;
  CheckpointClientOptions options_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<KeptPart> asked_ ABSL_GUARDED_BY(mutex_);                // the first one is under way
  std::unique_ptr<CheckpointClient> client_ ABSL_GUARDED_BY(mutex_);  // of the first one
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_PART_SENDER_H_
