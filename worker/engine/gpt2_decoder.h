// A whole GPT-2 that is asked token by token: one text, keys and values of what it has seen are
// kept. fp32, the functions of Gpt2Stage. A tensor `lm_head.weight` is the head where there is one.
// Thread: one owner, which also calls MakeGpt2Decoder. Memory: the weights, and 2 x layers x
// context x hidden floats.
#ifndef ISTHMUS_WORKER_ENGINE_GPT2_DECODER_H_
#define ISTHMUS_WORKER_ENGINE_GPT2_DECODER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/file/byte_source.h"
#include "proto/job.pb.h"
#include "worker/engine/engine_options.h"
#include "worker/generate/decoder.h"

namespace isthmus::engine {

// `model.norm_epsilon` is set. NotFound names a tensor that is missing, InvalidArgument one of
// another shape; FailedPrecondition: no such device. Tensors are read one at a time.
absl::StatusOr<std::unique_ptr<generate::Decoder>> MakeGpt2Decoder(const ModelSpec& model,
                                                                   const ByteSource& safetensors,
                                                                   const EngineOptions& options);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_GPT2_DECODER_H_
