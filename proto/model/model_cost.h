// What a model costs, part by part: floating-point operations, parameters, bytes kept for the
// backward pass. The planner balances stages with it; the reference block
// (worker/engine/reference_block.h) turns operations into seconds. Counted: matrix products (2 per
// multiply-add) and, with a weight of 1, the elementwise work around them. Thread: pure functions.
#ifndef ISTHMUS_PROTO_MODEL_MODEL_COST_H_
#define ISTHMUS_PROTO_MODEL_MODEL_COST_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace isthmus {

// Of one part of the model for one micro-batch. Costs add.
struct PartCost {
  double forward_flops = 0;
  double backward_flops = 0;
  double recomputed_flops = 0;  // of the forward pass, once more before the backward pass
  int64_t parameters = 0;
  int64_t activation_bytes = 0;  // fp32, kept from Forward until Backward of the micro-batch
  int64_t transient_bytes = 0;   // needed while the part computes, free afterwards

  int64_t parameter_bytes() const { return 4 * parameters; }
  double flops() const { return forward_flops + backward_flops + recomputed_flops; }
  PartCost& operator+=(const PartCost& other);
};

// What a stage that trains a slice (proto/plan/deal.h) holds of its blocks' heads and hidden units;
// the rest of a block, and the other parts, it holds whole.
struct SliceShare {
  double share = 1;
  int whole_layers = 0;  // so many first and last layers of the model are not dealt
  bool gathers = false;  // it has the whole weights, too, when the model comes together

  bool Deals(const ModelSpec& model, int layer) const {
    return share < 1 && layer >= whole_layers && layer < model.layers() - whole_layers;
  }
};

// `samples` is the micro-batch. `model` has its vocabulary set.
// Token and position embeddings; of an MLP the values of its rows.
PartCost EmbeddingCost(const ModelSpec& model, int64_t samples);
// One transformer block, of whose heads and hidden units `share` is held. Of an MLP a hidden layer
// behind another one, of whose units `share` is held both times. `recompute`: recipe.recompute,
// here and below.
PartCost BlockCost(const ModelSpec& model, int64_t samples, double share = 1,
                   bool recompute = false);
// Final norm, head, loss; of a tied one the embedding is not a parameter. Of an MLP the output
// layer, of whose inputs `share` is held.
PartCost HeadCost(const ModelSpec& model, int64_t samples, double share = 1);

// Blocks [first_layer, end_layer), with the embedding if first_layer is 0 and the head if end_layer
// is model.layers. The last of several stages counts the parameters of its copy of the tied
// embedding: it holds them.
PartCost StageCost(const ModelSpec& model, int first_layer, int end_layer, int64_t samples,
                   const SliceShare& slice = {}, bool recompute = false);

// Parameters of the stage's blocks that are dealt, of all slices together.
int64_t DealtParameters(const ModelSpec& model, int first_layer, int end_layer,
                        const SliceShare& slice);

// Parameters of the whole model, a tied embedding once.
int64_t ParameterCount(const ModelSpec& model);

// Bytes a stage needs at its peak: weights, gradients and two AdamW moments (16 bytes a parameter),
// `micros_in_flight` kept micro-batches, and the widest part's transient. A checkpoint is written
// from it in pieces, which take a few MiB. The process itself (LibTorch: about 260 MiB) is not in
// it. A slice that gathers has the weights of all that is dealt beside it.
int64_t StageMemoryBytes(const ModelSpec& model, int first_layer, int end_layer, int64_t samples,
                         int micros_in_flight, const SliceShare& slice = {},
                         bool recompute = false);

// The same in the memory of a GPU (worker/engine/README.md): attention keeps no weights, logits are
// those of some rows at a time, copies of a checkpoint are the host's. `bf16`: recipe.precision is.
// Measured: 5.7 GiB for GPT-2 124M with micro-batches of 8 x 1024, 11.1 for 12 layers of GPT2-XL's
// width with 4 x 1024, both in bf16.
int64_t CardMemoryBytes(const ModelSpec& model, bool bf16, int first_layer, int end_layer,
                        int64_t samples, int micros_in_flight, const SliceShare& slice = {},
                        bool recompute = false);

// Elements of the tensor at a boundary.
int64_t BoundaryElements(const ModelSpec& model, int64_t samples);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_MODEL_COST_H_
