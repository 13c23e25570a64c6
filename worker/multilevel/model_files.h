// A directory with a GPT-2 for the operators: config.json, model.safetensors (or shards and their
// index) and the tokenizer's files, read in rows. Checked before a byte is written: config, each
// tensor's name, type and shape. Thread: one owner. Memory: headers; no weights are held.
#ifndef ISTHMUS_WORKER_MULTILEVEL_MODEL_FILES_H_
#define ISTHMUS_WORKER_MULTILEVEL_MODEL_FILES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file/random_access_file.h"
#include "base/safetensors.h"
#include "worker/multilevel/operators.h"

namespace isthmus::multilevel {

constexpr size_t kMaxShards = 100;

class ModelFiles {
 public:
  // NotFound or InvalidArgument; the message names the file, and the tensor.
  static absl::StatusOr<ModelFiles> Open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const Shape& shape() const { return shape_; }
  double norm_epsilon() const { return norm_epsilon_; }
  const std::string& config() const { return config_; }  // the text of config.json
  // By name: the tokenizer's and generation_config.json, those that are there.
  absl::StatusOr<std::map<std::string, std::string>> OtherFiles() const;

  // F32, F16 and BF16 as floats. The name is that of SameMixes. DataLoss: the file shrank;
  // InvalidArgument: an element is not finite (file, tensor and element are named).
  absl::Status ReadRow(const std::string& tensor, int64_t row, absl::Span<float> values) const;

 private:
  struct Place {
    std::shared_ptr<const RandomAccessFile> file;
    SafetensorsPlace at;
  };
  ModelFiles() = default;
  absl::Status TakeFile(const std::string& path);
  absl::Status CheckTensors();
  absl::Status CheckHead();
  absl::Status Read(const Place& place, int64_t first, absl::Span<float> values) const;

  std::string dir_, config_;
  Shape shape_;
  double norm_epsilon_ = 0;
  std::map<std::string, Place> tensors_;  // names begin with "transformer." but for lm_head.weight
};

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_WORKER_MULTILEVEL_MODEL_FILES_H_
