// One safetensors file in F32 made of tensors of other files, as a stream: what an import uploads.
// Holds the header and a fixed buffer, whatever the size of the model; each pass reads the files
// again. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_MODEL_WEIGHT_STREAM_H_
#define ISTHMUS_COORDINATOR_CLI_MODEL_WEIGHT_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file/random_access_file.h"
#include "base/safetensors.h"

namespace isthmus::cli {

class WeightStream {
 public:
  // A tensor of `file`, F32, F16 or BF16 there; the first elements of it that `shape` asks for.
  // InvalidArgument: of another type, or one is not finite.
  absl::Status Add(const std::string& name, const std::vector<int64_t>& shape,
                   std::shared_ptr<const RandomAccessFile> file, const SafetensorsPlace& place);

  // After the last Add: makes the header and reads everything once.
  absl::Status Seal();
  int64_t bytes() const { return bytes_; }
  uint64_t checksum() const { return checksum_; }  // XXH3-64
  int64_t elements() const;

  // The file in pieces, in order; ends early where `take` returns false.
  using Take = std::function<bool(absl::string_view piece)>;
  absl::Status Write(const Take& take) const;

 private:
  struct Tensor {
    SafetensorsSpec spec;
    std::shared_ptr<const RandomAccessFile> file;
    std::string dtype;  // in the file
    int64_t at;
    int64_t elements;
  };
  std::vector<Tensor> tensors_;
  std::string head_;
  int64_t bytes_ = 0;
  uint64_t checksum_ = 0;
};

// The elements of a tensor as floats, a buffer at a time; ends early where `take` returns false.
absl::Status ReadFloats(
    const RandomAccessFile& file, const std::string& dtype, int64_t at, int64_t elements,
    const std::function<bool(int64_t first, const std::vector<float>& values)>& take);

// The first element that differs and how many do; {-1, 0}: none. Both have `elements`.
struct Difference {
  int64_t first = -1;
  int64_t count = 0;
  float a = 0;
  float b = 0;
};
absl::StatusOr<Difference> CompareTensors(const RandomAccessFile& a_file,
                                          const SafetensorsPlace& a_place,
                                          const RandomAccessFile& b_file,
                                          const SafetensorsPlace& b_place, int64_t elements);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_MODEL_WEIGHT_STREAM_H_
