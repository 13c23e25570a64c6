// The parts of a GPT-2 as functions of tensors: embedding, transformer block (pre-LN, causal
// attention, tanh GELU), head with loss. Gradients come from LibTorch's autograd. Functions throw
// what LibTorch throws; gpt2_stage.cc catches. For worker/engine alone. Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_BLOCKS_H_
#define ISTHMUS_WORKER_ENGINE_BLOCKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace isthmus::engine {

// Views into the stage's parameters, in the order gpt2_parameters.h lists a block's; weights are
// [in, out].
struct BlockWeights {
  at::Tensor norm1_weight, norm1_bias;
  at::Tensor attention_weight, attention_bias;    // hidden -> 3 hidden: queries, keys, values
  at::Tensor projection_weight, projection_bias;  // hidden -> hidden
  at::Tensor norm2_weight, norm2_bias;
  at::Tensor wide_weight, wide_bias;      // hidden -> 4 hidden
  at::Tensor narrow_weight, narrow_bias;  // 4 hidden -> hidden
};
inline constexpr int kBlockTensors = 12;

// A block that holds a part of the heads and of the hidden units (proto/plan/deal.h) multiplies
// what its two projections onto the residual stream add, but for their biases, so that the sum is
// about as large as that of a whole one.
struct BlockShape {
  int64_t heads = 1;  // that it holds
  double attention_scale = 1, mlp_scale = 1;
};

// 1 x positions x positions: 0 where row may see column, -inf after it.
at::Tensor CausalMask(int64_t positions, const at::TensorOptions& options);

// tokens: samples x positions, int64. Result: samples x positions x hidden.
at::Tensor Embed(const at::Tensor& tokens, const at::Tensor& token_embedding,
                 const at::Tensor& position_embedding);

// The gradients of both tables get that of Embed's result, samples x positions x hidden.
void AddEmbedded(const at::Tensor& tokens, const at::Tensor& gradient, at::Tensor token_gradient,
                 at::Tensor position_gradient);

// x: samples x positions x hidden, and so the result. Products and attention have the type of the
// weights, bf16 or fp32; norms and sums of the residual stream are fp32.
at::Tensor Block(const at::Tensor& x, const BlockWeights& w, const BlockShape& shape,
                 const at::Tensor& mask, double norm_epsilon);

// What an autoencoder does on either side of a boundary: x by `weight`, [in, out], over the last
// dimension, in the type of `weight`. Linear, no bias.
at::Tensor Project(const at::Tensor& x, const at::Tensor& weight);

// Final norm: (samples x positions) x hidden.
at::Tensor HeadNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    double epsilon);

// The tied head: (samples x positions) x vocabulary.
at::Tensor Logits(const at::Tensor& x, const at::Tensor& token_embedding);

// Cross-entropy in nats of each token. targets: samples x positions, int64.
at::Tensor TokenLosses(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_BLOCKS_H_
