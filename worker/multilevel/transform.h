// The operators on directories: reads a model in rows and writes the result, F32, as one directory
// that appears whole or not at all. Thread: one owner. Memory: a few rows and a buffer, whatever
// the size of the model.
#ifndef ISTHMUS_WORKER_MULTILEVEL_TRANSFORM_H_
#define ISTHMUS_WORKER_MULTILEVEL_TRANSFORM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/multilevel/model_files.h"
#include "worker/multilevel/record.h"

namespace isthmus::multilevel {

struct Target {
  std::string dir;
  bool replace = false;  // what is there
};

struct Written {
  Shape shape;
  int64_t bytes = 0;    // of model.safetensors
  std::string history;  // JSON
};

// Coalesces or de-coalesces, as `operation` says. InvalidArgument: a factor that does not fit, a
// weight that is not finite (file, tensor and element are named), `target` is there.
// ResourceExhausted: the disk has not enough room, which is looked at before anything is written.
absl::StatusOr<Written> Transform(const ModelFiles& source, const Operation& operation,
                                  const Target& target);

// (1 - alpha) before + alpha other. The tokenizer and the config are those of `before`.
// InvalidArgument as above, or: alpha outside [0, 1], another shape or norm epsilon.
absl::StatusOr<Written> InterpolateModels(const ModelFiles& before, const ModelFiles& other,
                                          double alpha, const Target& target);

// "12 layers of width 768, 12 heads, vocabulary 50257, context 1024"
std::string ShapeWords(const Shape& shape);

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_WORKER_MULTILEVEL_TRANSFORM_H_
