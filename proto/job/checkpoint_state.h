// state.json of a checkpoint: what a run is beside its weights. Stages write it; stages and the
// coordinator (when it plans a resume) read it. A checkpoint of an older version, or of another
// program, has less: what is missing is not set. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_CHECKPOINT_STATE_H_
#define ISTHMUS_PROTO_JOB_CHECKPOINT_STATE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"

namespace isthmus {

struct CheckpointState {
  int64_t step = 0;           // committed or skipped
  int64_t skipped_steps = 0;  // of them those that did not commit
  uint64_t generation = 0;
  int stage = 0;
  int stages = 0;
  std::optional<JobSpec> job;            // with defaults, as that generation ran it
  std::optional<DataPosition> position;  // after `step`
  uint64_t corpus_fingerprint = 0;       // Corpus::fingerprint of what was read; 0: not known
  uint64_t corpus_contents = 0;  // DataContents (data_contents.h) of its files; 0: not known
};

std::string CheckpointStateJson(const CheckpointState& state);

// InvalidArgument: not a state file, or not one of `step`.
absl::StatusOr<CheckpointState> ParseCheckpointState(absl::string_view json, int64_t step);

// "93c467e37db0c7a4": how fingerprints are written.
std::string FingerprintText(uint64_t fingerprint);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_CHECKPOINT_STATE_H_
