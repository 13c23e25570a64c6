// The files of one whole checkpoint, read: what its manifest says of them, whether they are it, and
// the answers that are made of them, as a stream. A reader holds a header, a fixed buffer and open
// files, whatever the size of the model; what it opened stays readable while retention removes the
// directory. Thread: values; a CheckpointReader has one owner. Bounds: those of safetensors
// headers.
#ifndef ISTHMUS_COORDINATOR_STORE_CHECKPOINT_FILES_H_
#define ISTHMUS_COORDINATOR_STORE_CHECKPOINT_FILES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file/random_access_file.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "proto/control.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxStages = 256;
constexpr int kMaxReplicas = 256;
constexpr const char* kCheckpointFiles[] = {"weights.safetensors", "optimizer.safetensors",
                                            "state.json"};  // of each stage
// What each further replica of a stage adds with local steps: moments and skipped steps of its own.
constexpr const char* kReplicaFiles[] = {"optimizer.safetensors", "state.json"};
// The name of such a file in the stage's directory: "optimizer.safetensors", or of a further
// replica "replica-001-optimizer.safetensors".
std::string PartName(int replica, const std::string& file);
// All of them that a checkpoint has of a stage's replica. `upload`: weights alone.
std::vector<std::string> PartNames(int replica, bool upload);
constexpr char kManifest[] = "manifest.json";
// In a checkpoint that ends a phase: what the next one starts with, weights and a manifest.
constexpr char kStart[] = "start";
constexpr char kStartWeights[] = "weights.safetensors";
std::string StageName(int stage);          // "stage-000"
std::string StepName(int64_t step);        // "step-00000100"
constexpr char kGoing[] = "removed-";      // and its step: a checkpoint that is being removed
void RemoveTree(const std::string& path);  // a line in the log where it can't be

struct CheckpointManifest {
  struct File {
    int64_t bytes = 0;
    uint64_t checksum = 0;  // XXH3-64
  };
  std::string job_id;
  int64_t step = 0;
  uint64_t generation = 0;
  int stages = 0;
  int replicas = 1;                   // that have parts
  std::string made;                   // of kStart alone: how, in words
  std::map<std::string, File> files;  // by path: "stage-000/weights.safetensors"

  int64_t bytes() const;
  std::string ToJson() const;
  // NotFound: `dir` has none. FailedPrecondition: it is not one.
  static absl::StatusOr<CheckpointManifest> Read(const std::string& dir);
};

// What a checkpoint is by the name of its directory, and by what was known of it before.
struct CheckpointIdentity {
  std::string job_id;
  int64_t step = 0;
  std::optional<uint64_t> generation;  // none: not known yet
};

// FailedPrecondition: `manifest` is of another checkpoint (its directory was copied or renamed by
// hand), or does not name just the files of its stages.
absl::Status CheckIdentity(const CheckpointManifest& manifest, const CheckpointIdentity& identity);

// Of kStart of the checkpoint in `dir`. NotFound: it has none. FailedPrecondition: it is another
// one's.
absl::StatusOr<CheckpointManifest> ReadStartManifest(const std::string& dir,
                                                     const CheckpointIdentity& identity);
// And its file against the checksum.
absl::Status CheckStart(const std::string& dir, const CheckpointManifest& manifest);

// Files of one checkpoint, opened.
using OpenCheckpoint = std::map<std::string, RandomAccessFile>;

// FailedPrecondition as of CheckIdentity; or a folder of a stage is one too many; or "FILE is
// damaged: why": its size or (with `contents`) its checksum is not what the manifest says.
// `cancelled` is asked between files.
absl::Status CheckCheckpoint(const std::string& dir, const CheckpointIdentity& identity,
                             bool contents, const std::function<bool()>& cancelled);

// One answer: the JSON of state, or one safetensors file merged over the stages, in name order.
class CheckpointReader {
 public:
  // Opens the files that the answer is made of, then Verify. FailedPrecondition as of
  // CheckIdentity. Short: fit to be called under a lock that keeps the directory in its place.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& dir, const CheckpointIdentity& identity,
      const FetchCheckpointRequest& request);
  ~CheckpointReader();

  // Finds the tensors and reads each file that is needed against its checksum; before the first
  // Read. NotFound: a tensor is missing. FailedPrecondition: a file is damaged.
  absl::Status Verify(const std::function<bool()>& cancelled);

  int64_t total_bytes() const { return total_; }
  // The next bytes, at most `count`; empty after the last one.
  absl::Status Read(size_t count, std::string* out);
  uint64_t checksum() const { return hasher_.Digest(); }  // of what was read so far

  std::function<void()> done;  // called by the destructor

 private:
  struct Piece {
    const RandomAccessFile* file;
    int64_t at;
    int64_t bytes;
  };
  explicit CheckpointReader(FetchCheckpointRequest request) : request_(std::move(request)) {}
  absl::Status OpenStart(const std::string& dir, const CheckpointIdentity& identity);
  absl::Status VerifyFile(const std::string& path) const;
  absl::Status Merge(const std::function<bool()>& cancelled);

  const FetchCheckpointRequest request_;
  CheckpointManifest manifest_;
  OpenCheckpoint files_;
  std::vector<std::string> order_;  // of files_: a tensor is taken from the first one that has it
  std::string head_;                // stands before the pieces
  std::vector<Piece> pieces_;       // in order
  int64_t total_ = 0;
  size_t piece_ = 0;
  int64_t at_ = 0;  // in the head, then in pieces_[piece_]
  bool in_head_ = true;
  Hasher hasher_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_STORE_CHECKPOINT_FILES_H_
