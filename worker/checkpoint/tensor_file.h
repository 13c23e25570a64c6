// The tensors of a stage as safetensors files, read and written piece by piece: neither a file nor
// a tensor is in memory beside the stage. Files are, byte for byte, what WriteSafetensors makes of
// the same tensors. Thread: the stage's.
#ifndef ISTHMUS_WORKER_CHECKPOINT_TENSOR_FILE_H_
#define ISTHMUS_WORKER_CHECKPOINT_TENSOR_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file/byte_source.h"
#include "worker/stage.h"

namespace isthmus::worker {

using TakesTensor = std::function<bool(const StageTensor&)>;

// What comes and goes at once of a stage, where nothing else says how much.
constexpr size_t kPieceBytes = size_t{4} << 20;

// A file that is made while it is read, of what the stage holds then.
class StageFile : public ByteSource {
 public:
  // Of the tensors that `takes`, by name; null: there are none. `stage` outlives it.
  static absl::StatusOr<std::unique_ptr<StageFile>> Make(Stage* stage, const TakesTensor& takes);

  int64_t bytes() const override { return bytes_; }
  absl::Status ReadAt(int64_t offset, size_t count, char* out) const override;

 private:
  struct Place {
    int tensor = 0;  // of the stage
    int64_t at = 0;  // its first byte in the file
    int64_t bytes = 0;
  };
  explicit StageFile(Stage* stage) : stage_(stage) {}
  absl::Status ReadTensorAt(const Place& place, int64_t offset, size_t count, char* out) const;

  Stage* const stage_;
  std::string head_;
  std::vector<Place> places_;  // in order
  int64_t bytes_ = 0;
};

// Fills the tensors of `stage` that `takes`, after it has checked all of them: from F32, F16 or
// BF16, each from the first of `files` that has it. Names may lack their "transformer.". What is
// not GPT-2's (IsOwnTensor) stays as it is where no file has one of that shape. NotFound: a tensor
// is missing; InvalidArgument: its shape or type is another, or a file is not one. Messages begin
// with `what`.
absl::Status FillStage(const std::vector<const ByteSource*>& files, const TakesTensor& takes,
                       absl::string_view what, Stage* stage);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_TENSOR_FILE_H_
