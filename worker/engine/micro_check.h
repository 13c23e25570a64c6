// Checks of what a stage is given for a micro-batch. For worker/engine alone.
// Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_MICRO_CHECK_H_
#define ISTHMUS_WORKER_ENGINE_MICRO_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/codec/codec_size.h"
#include "proto/job.pb.h"
#include "worker/stage.h"

namespace isthmus::engine {

// InvalidArgument: no samples, or more positions than the model has.
absl::Status CheckMicroBatch(const ModelSpec& model, const worker::MicroBatch& batch);
// ... not as many ids as the samples have (a position, or a value of a row, each), or one beyond
// the vocabulary.
absl::Status CheckInputs(const ModelSpec& model, const worker::MicroBatch& batch);
// ... not one target a position, or one beyond the vocabulary, or the classes.
absl::Status CheckTargets(const ModelSpec& model, const worker::MicroBatch& batch);
// ... an activation or gradient of another shape.
absl::Status CheckEdge(absl::string_view what, int32_t micro, const worker::Tensor& tensor,
                       const TensorDims& expected);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_MICRO_CHECK_H_
