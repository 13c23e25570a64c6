// A directory with a GPT-2 as `isthmus export` and Hugging Face write it: config.json,
// model.safetensors and, where it is there, generation_config.json. Thread: pure but for reading
// files. Limits: one file of weights, held in memory.
#ifndef ISTHMUS_WORKER_GENERATE_MODEL_DIR_H_
#define ISTHMUS_WORKER_GENERATE_MODEL_DIR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file/byte_source.h"
#include "proto/job.pb.h"

namespace isthmus::generate {

struct ModelConfig {
  ModelSpec model;
  std::optional<int32_t> end;  // the token that ends a text (eos_token_id)
};

// InvalidArgument lists what this model has that ours have not.
absl::StatusOr<ModelConfig> ParseConfig(absl::string_view config_json);

struct ModelDir {
  ModelConfig config;
  std::shared_ptr<const ByteSource> weights;  // a safetensors file, opened
};

// NotFound or InvalidArgument; the message names the file. The header of the weights is
// sound, and they are no larger than those of such a model: memory is bounded by config.json.
absl::StatusOr<ModelDir> ReadModelDir(const std::string& dir);

}  // namespace isthmus::generate

#endif  // ISTHMUS_WORKER_GENERATE_MODEL_DIR_H_
