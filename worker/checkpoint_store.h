// Where a session's checkpoints go and come from, as the worker declares it: implemented by daemon/
// over the bulk channel, in memory by tests. Thread: any.
#ifndef ISTHMUS_WORKER_CHECKPOINT_STORE_H_
#define ISTHMUS_WORKER_CHECKPOINT_STORE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"

namespace isthmus::worker {

// The name under which a stage's copy of tied tensors is kept beside the weights of this checksum:
// it holds tensors of another stage, whose copy at the coordinator this host does not see, so it is
// of the commit of those weights or of no use.
inline std::string TiedFile(uint64_t weights_checksum) {
  return absl::StrCat("tied-", absl::Hex(weights_checksum, absl::kZeroPad16), ".safetensors");
}

// Every call ends by itself, when no byte of it has moved for long or the daemon ends: a session
// waits for one that runs for as long as it takes.
class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;
  // `file` is weights.safetensors, optimizer.safetensors or state.json; size and checksum are those
  // of `bytes`, which nobody hashes again on this host. Atomic: a part is there whole or not at
  // all.
  virtual absl::Status Put(const PutCheckpointHeader& header, absl::string_view bytes) = 0;
  // Keeps a file on this host's own disk, before it is Put: a resume on the same hosts with the
  // same cut then fetches nothing. `file` may be a TiedFile as well, which is not Put:
  // what this stage holds of tensors that another one puts. A resume does without what could not be
  // kept.
  virtual void Keep(const PutCheckpointHeader& header, absl::string_view bytes) = 0;
  // One safetensors file with the tensors asked for (`what`: weights | optimizer), or the JSON of
  // state.
  virtual absl::StatusOr<std::string> Fetch(const FetchCheckpointRequest& request) = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_STORE_H_
