// The shapes of the tensors of a GPT-2's stage, in the order in which the engine has them
// (worker/engine/gpt2_parameters.h): for codecs that work by matrix. Thread: pure function.
#ifndef ISTHMUS_PROTO_MODEL_STAGE_SHAPES_H_
#define ISTHMUS_PROTO_MODEL_STAGE_SHAPES_H_

#include <vector>

#include "proto/codec/codec_size.h"
#include "proto/job.pb.h"

namespace isthmus {

// Of blocks [first_layer, end_layer), with the embeddings where first_layer is 0 and the final norm
// where end_layer is model.layers. A tied token embedding is one of them where one stage has both,
// any other one on the first stage, and on the last one then its head.
// Each is {1, rows, columns}; a vector has one row.
std::vector<TensorDims> StageShapes(const ModelSpec& model, int first_layer, int end_layer);

int64_t ElementsOf(const std::vector<TensorDims>& shapes);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_STAGE_SHAPES_H_
