// Checkpoints as one stage makes and takes them. All stages save the same step, because the
// decision of the vote says when.
//
// A checkpoint is an open list of named parts. At a commit the compute thread writes each of them,
// tensor by tensor, into a file on this host's disk; then training goes on, and a thread of its own
// puts the files (checkpoint_writer.h). Neither holds more than a few pieces in memory. Where the
// disk does not take them, the parts are read from the stage itself while they are put, and the
// step waits. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_CHECKPOINT_CHECKPOINT_H_
#define ISTHMUS_WORKER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job/checkpoint_state.h"
#include "worker/checkpoint/part_store.h"
#include "worker/session_plan.h"
#include "worker/stage.h"

namespace isthmus::worker {

struct CheckpointPart {
  PutCheckpointHeader header;
  std::unique_ptr<ByteSource> bytes;  // a kept file, or what is made of the stage while it is read
  bool hashed = false;                // `header` has its checksum
  bool put = true;                    // else it is kept on this host alone
};

struct CheckpointParts {
  int64_t step = 0;  // committed steps
  std::vector<CheckpointPart> parts;
  bool last = false;  // of the session
  absl::Status
      on_disk;  // OK: all of them are files now. Else they are read from the stage, and why
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

// The parts of everything that `stage` stores, as files that `store` keeps. Where one can't be
// kept, `on_disk` says why, and that one and those after it are parts of the stage: without a
// checksum, and to be read before its next step. `local`: they are kept on this host and not put.
absl::StatusOr<CheckpointParts> KeepCheckpoint(const SessionPlan& plan, PartStore* store,
                                               Stage* stage, const CheckpointState& state,
                                               bool local);

// Weights, and from step 1 on the optimiser's state, of checkpoint plan.start_step; where a phase
// begins there, the weights that it starts with and no more. The result is the checkpoint's
// state.json; before step 1 an empty one.
absl::StatusOr<CheckpointState> LoadCheckpoint(const SessionPlan& plan, PartStore* store,
                                               Stage* stage);

// FailedPrecondition: a plan that goes on in the pass of the checkpoint reads another text than the
// checkpoint was trained on. One that begins a new pass may.
absl::Status CheckSameText(const SessionPlan& plan, const CheckpointState& state,
                           uint64_t fingerprint);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_CHECKPOINT_H_
