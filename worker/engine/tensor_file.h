// Tensors as safetensors bytes and back. For worker/engine alone. Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_TENSOR_FILE_H_
#define ISTHMUS_WORKER_ENGINE_TENSOR_FILE_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus::engine {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

absl::StatusOr<std::string> WriteTensors(const NamedTensors& tensors);

// Fills `targets`, fp32, after it has checked all of them. Names may lack their "transformer.".
// What is not GPT-2's (IsOwnTensor) stays as it is where the bytes have none of that shape.
// NotFound: a tensor is missing; InvalidArgument: its shape or type is another. Messages begin with
// `what`.
absl::Status ReadTensors(absl::string_view bytes, const NamedTensors& targets,
                         absl::string_view what);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_TENSOR_FILE_H_
