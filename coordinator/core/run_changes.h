// What a resume changes. A pure core: it compares the job that wrote a checkpoint with the one that
// is to go on from it, field by field, with the learning rate where it goes on and the data it
// reads, and says of each difference whether the result is another training than the one begun.
// It also says where in the data the run goes on: exactly where it was, or, where the samples are
// others (another text, cut or seed), at the start of a new pass. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CORE_RUN_CHANGES_H_
#define ISTHMUS_COORDINATOR_CORE_RUN_CHANGES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/job/checkpoint_state.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// What daemons list of the data that a job reads.
struct DataNow {
  int64_t train_samples = 0;  // 0: not known
  uint64_t contents = 0;      // DataContents; 0: not known
};

struct Resume {
  // Before the next step. None: of a checkpoint without a position, whose text is not known either;
  // its stages then count steps of the batch, which has not changed.
  std::optional<DataPosition> data;
  std::vector<FieldChange> changes;
};

// FailedPrecondition: a checkpoint goes on with its own model.
absl::Status SameModel(const ModelSpec& before, const ModelSpec& after);

// `state` is the checkpoint's; `ran` the job as it ran then, where `state` does not hold it;
// `all`, with its defaults and all its phases, goes on. FailedPrecondition: where the data stand
// can't be told, or a phase was changed that is done.
absl::StatusOr<Resume> CompareRuns(const CheckpointState& state, const JobSpec& ran,
                                   const JobSpec& all, const DataNow& now);

// FailedPrecondition if a change alters the run: which ones, and what to do.
absl::Status CheckAccepted(const std::vector<FieldChange>& changes, int64_t step);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_RUN_CHANGES_H_
