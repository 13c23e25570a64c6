// Puts checkpoints in the background, one at a time: while one is under way the stage votes `busy`
// and the next one waits. A periodic checkpoint that can't be stored is logged and training goes on
// under the coordinator's absence; the last one must be stored for the session to end well, and is
// held and tried again while the coordinator is away or its disk is full. What is held are open
// files on this host's disk.
#ifndef ISTHMUS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
#define ISTHMUS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/part_store.h"
#include "worker/session_observer.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

struct CheckpointWriterOptions {
  absl::Duration hold = absl::Minutes(30);   // the last checkpoint is tried again for so long ...
  absl::Duration again = absl::Seconds(5);   // ... with so long in between
  std::atomic<int64_t>* progress = nullptr;  // grows with every file put, and every try of one
};

// Thread: Save, SaveHere, WaitIdle and the destructor on the compute thread; Abort from any.
class CheckpointWriter {
 public:
  // `store` and `observer` outlive the writer. CHECKPOINTED is reported after the last Put of a
  // checkpoint; null: to nobody, since what is put are copies.
  CheckpointWriter(const SessionPlan& plan, PartSink* store, SessionObserver* observer,
                   CheckpointWriterOptions options = {});
  ~CheckpointWriter();  // waits for the call of the store that runs

  // Returns at once. Only while idle, and of parts that are on disk.
  void Save(CheckpointParts parts);
  // On the calling thread: of parts that are read from the stage meanwhile. Those of one that is
  // not the last are given up after `patience`: other stages wait for this one.
  void SaveHere(CheckpointParts parts, absl::Duration patience);
  // True: nothing is under way. False after `timeout`; what is under way ends by itself.
  bool WaitIdle(absl::Duration timeout);
  // The last checkpoint is not held any longer.
  void Abort();
  // Of the last checkpoint saved; OK before the first.
  absl::Status last_status() const;

 private:
  void Run();
  void Store(CheckpointParts* parts);
  absl::Status PutAll(CheckpointParts* parts);
  absl::Status PutRest(CheckpointParts* parts, size_t* done);
  bool Pause(std::chrono::steady_clock::time_point give_up);

  const SessionPlan& plan_;
  PartSink* const store_;
  SessionObserver* const observer_;
  const CheckpointWriterOptions options_;
  BoundedQueue<CheckpointParts> queue_{1};
  mutable Mutex mutex_;
  CondVar changed_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_CHECKPOINT_WRITER_H_
