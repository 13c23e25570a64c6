// Checkpoints as one stage makes and takes them. All stages save the same step, because the
// decision of the vote says when.
//
// The compute thread exports copies at a commit; a background thread puts them, one checkpoint at a
// time: while one is under way the stage votes `busy` and the next one waits. A periodic checkpoint
// that can't be stored is logged and training goes on under the coordinator's absence; the last one
// must be stored for the session to end well.
#ifndef ISTHMUS_WORKER_CHECKPOINT_H_
#define ISTHMUS_WORKER_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "proto/checkpoint_state.h"
#include "worker/session.h"
#include "worker/session_plan.h"
#include "worker/stage.h"

namespace isthmus::worker {

struct CheckpointParts {
  int64_t step = 0;       // committed steps
  std::string weights;    // safetensors
  std::string optimizer;  // safetensors
  std::string state;      // JSON
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

// Thread: Save, WaitIdle and the destructor on the compute thread.
class CheckpointWriter {
 public:
  // `store` and `observer` outlive the writer. CHECKPOINTED is reported after the last Put of a
  // checkpoint.
  CheckpointWriter(const SessionPlan& plan, CheckpointStore* store, SessionObserver* observer);
  ~CheckpointWriter();  // waits for the checkpoint under way

  // Returns at once. Only while idle.
  void Save(CheckpointParts parts);
  // True: nothing is under way. False after `timeout`.
  bool WaitIdle(absl::Duration timeout);
  // Of the last checkpoint saved; OK before the first.
  absl::Status last_status() const;

 private:
  void Run();
  absl::Status Put(const CheckpointParts& parts);

  const SessionPlan& plan_;
  CheckpointStore* const store_;
  SessionObserver* const observer_;
  BoundedQueue<CheckpointParts> queue_{1};
  mutable Mutex mutex_;
  CondVar idle_changed_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_H_
