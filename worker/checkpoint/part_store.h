// Where a session's checkpoints go and come from, as the worker declares it: implemented by daemon/
// over the bulk channel and its own disk, in memory by tests. Thread: any.
#ifndef ISTHMUS_WORKER_CHECKPOINT_PART_STORE_H_
#define ISTHMUS_WORKER_CHECKPOINT_PART_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file/byte_source.h"
#include "proto/control.pb.h"

namespace isthmus::worker {

// The name under which a stage's copy of tied tensors is kept beside the weights of this checksum:
// it holds tensors of another stage, whose copy at the coordinator this host does not see, so it is
// of the commit of those weights or of no use.
inline std::string TiedFile(uint64_t weights_checksum) {
  return absl::StrCat("tied-", absl::Hex(weights_checksum, absl::kZeroPad16), ".safetensors");
}

// A file on this host's own disk. It can be read while `bytes` lives, whatever is removed.
struct KeptFile {
  uint64_t checksum = 0;  // XXH3-64, counted while it was written
  std::unique_ptr<ByteSource> bytes;
};

// Of several files each tensor is taken from the first one that has it.
using FetchedFiles = std::vector<std::unique_ptr<ByteSource>>;

// Where the parts of a checkpoint are put. Every call ends by itself, as those of PartStore do.
class PartSink {
 public:
  virtual ~PartSink() = default;
  // `file` is weights.safetensors, optimizer.safetensors or state.json; size and checksum are those
  // of `part`, which nobody hashes again on this host. Atomic: a part is there whole or not at all.
  // `part` is read on the caller's thread, anew at each attempt; an error of it ends the call.
  virtual absl::Status Put(const PutCheckpointHeader& header, const ByteSource& part) = 0;
};

// Every call ends by itself, when no byte of it has moved for long or the daemon ends: a session
// waits for one that runs for as long as it takes.
class PartStore : public PartSink {
 public:
  // Writes a part of a checkpoint to this host's own disk, whole or not at all, before it is Put: a
  // resume on the same hosts with the same cut then fetches nothing, and whoever puts it holds no
  // memory. `header` names it: all but its checksum is set. `file` may be a TiedFile as well, which
  // is not Put: what this stage holds of tensors that another one puts. One of a local checkpoint
  // survives the process, but need not survive a power cut. Reads `part` on the caller's thread.
  // ResourceExhausted, or what the system says: the disk does not take it.
  virtual absl::StatusOr<KeptFile> Keep(const PutCheckpointHeader& header,
                                        const ByteSource& part) = 0;
  // Safetensors files with the tensors asked for (`what`: weights | optimizer), or the JSON of
  // state. They are on disk.
  virtual absl::StatusOr<FetchedFiles> Fetch(const FetchCheckpointRequest& request) = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_PART_STORE_H_
