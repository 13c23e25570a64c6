// Checkpoints as one stage makes and takes them. All stages save the same step, because the
// decision of the vote says when.
//
// The compute thread exports copies at a commit; a background thread keeps them on this host's disk
// and puts them, one checkpoint at a time: while one is under way the stage votes `busy` and the
// next one waits. A periodic checkpoint that can't be stored is logged and training goes on under
// the coordinator's absence; the last one must be stored for the session to end well, and is held
// and tried again while the coordinator is away or its disk is full.
#ifndef ISTHMUS_WORKER_CHECKPOINT_H_
#define ISTHMUS_WORKER_CHECKPOINT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "proto/job/checkpoint_state.h"
#include "worker/checkpoint_store.h"
#include "worker/session_observer.h"
#include "worker/session_plan.h"
#include "worker/stage.h"

namespace isthmus::worker {

struct CheckpointParts {
  int64_t step = 0;       // committed steps
  std::string weights;    // safetensors
  std::string optimizer;  // safetensors
  std::string state;      // JSON
  std::string tied;       // safetensors; kept on this host alone. Empty: nothing to keep
  bool last = false;      // of the session
};

// What a stage that reads data knows of it; on the others nothing is set.
struct CorpusPosition {
  std::optional<DataPosition> position;
  uint64_t fingerprint = 0;
  uint64_t contents = 0;  // SessionOptions.data_contents
};

// What state.json says after `step`. `skipped`: steps that did not commit.
CheckpointState StateOf(const SessionPlan& plan, int64_t step, int64_t skipped,
                        const CorpusPosition& corpus);

// Copies of everything `stage` holds. Thread: the compute thread.
absl::StatusOr<CheckpointParts> ExportCheckpoint(const SessionPlan& plan, Stage* stage,
                                                 int64_t step, int64_t skipped,
                                                 const CorpusPosition& corpus);

// Weights, and from step 1 on the optimiser's state, of checkpoint plan.start_step. The result is
// its state.json; before step 1 an empty one.
absl::StatusOr<CheckpointState> LoadCheckpoint(const SessionPlan& plan, CheckpointStore* store,
                                               Stage* stage);

// FailedPrecondition: a plan that goes on in the pass of the checkpoint reads another text than the
// checkpoint was trained on. One that begins a new pass may.
absl::Status CheckSameText(const SessionPlan& plan, const CheckpointState& state,
                           uint64_t fingerprint);

struct CheckpointWriterOptions {
  absl::Duration hold = absl::Minutes(30);   // the last checkpoint is tried again for so long ...
  absl::Duration again = absl::Seconds(5);   // ... with so long in between
  std::atomic<int64_t>* progress = nullptr;  // grows with every file put, and every try of one
};

// Thread: Save, WaitIdle and the destructor on the compute thread; Abort from any.
class CheckpointWriter {
 public:
  // `store` and `observer` outlive the writer. CHECKPOINTED is reported after the last Put of a
  // checkpoint.
  CheckpointWriter(const SessionPlan& plan, CheckpointStore* store, SessionObserver* observer,
                   CheckpointWriterOptions options = {});
  ~CheckpointWriter();  // waits for the call of the store that runs

  // Returns at once. Only while idle.
  void Save(CheckpointParts parts);
  // True: nothing is under way. False after `timeout`; what is under way ends by itself.
  bool WaitIdle(absl::Duration timeout);
  // The last checkpoint is not held any longer.
  void Abort();
  // Of the last checkpoint saved; OK before the first.
  absl::Status last_status() const;

 private:
  void Run();
  absl::Status Store(const CheckpointParts& parts);
  absl::Status PutRest(const CheckpointParts& parts,
                       const std::vector<PutCheckpointHeader>& headers, size_t* done);
  bool Pause(std::chrono::steady_clock::time_point give_up);
  PutCheckpointHeader Header(const CheckpointParts& parts, const std::string& file,
                             const std::string& bytes) const;

  const SessionPlan& plan_;
  CheckpointStore* const store_;
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

#endif  // ISTHMUS_WORKER_CHECKPOINT_H_
