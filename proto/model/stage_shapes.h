// The shapes of the tensors of a stage, in the order in which the engine has them
// (worker/engine/gpt2_parameters.h, mlp.h): for codecs that work by matrix, and for parts of a
// stage.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_MODEL_STAGE_SHAPES_H_
#define ISTHMUS_PROTO_MODEL_STAGE_SHAPES_H_

#include <functional>
#include <vector>

#include "proto/codec/codec_size.h"
#include "proto/job.pb.h"

namespace isthmus {

// Of blocks [first_layer, end_layer), with the embeddings where first_layer is 0 and the final norm
// where end_layer is model.layers. A tied token embedding is one of them where one stage has both,
// any other one on the first stage, and on the last one then its head.
// Each is {1, rows, columns}; a vector has one row.
std::vector<TensorDims> StageShapes(const ModelSpec& model, int first_layer, int end_layer);

// Tensors of a stage, layer by layer (an MLP's output with the last): the embeddings go with the
// first layer, the final norm with the last one. Of blocks that are dealt to subnetworks
// (proto/plan/deal.h) what all of them share: norms, and the biases of the two projections onto the
// residual stream.
using LayerTensors = std::vector<std::vector<TensorDims>>;
LayerTensors StageLayers(const ModelSpec& model, int first_layer, int end_layer,
                         const std::function<bool(int layer)>& dealt = nullptr);
std::vector<TensorDims> AllOf(const LayerTensors& layers);
// Where the elements of each layer end.
std::vector<int64_t> EndsOf(const LayerTensors& layers);

int64_t ElementsOf(const std::vector<TensorDims>& shapes);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_STAGE_SHAPES_H_
