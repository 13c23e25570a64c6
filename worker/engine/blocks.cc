#include "worker/engine/blocks.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>
#include <vector>
#if __has_include(<ATen/ops/scaled_dot_product_attention.h>)
#include <ATen/ops/scaled_dot_product_attention.h>
#define ISTHMUS_FUSED_ATTENTION 1
#else
#define ISTHMUS_FUSED_ATTENTION 0
#endif

namespace isthmus::engine {
namespace {

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

// Queries, keys and values of samples x positions x 3 x heads x width: each samples x heads x
// positions x width. Contiguous for the products of a CPU; the fused attention of a GPU takes them
// as they lie, and their gradients go back in one copy.
std::vector<at::Tensor> SplitHeads(const at::Tensor& qkv) {
  if (!ISTHMUS_FUSED_ATTENTION || !qkv.is_cuda())
    return qkv.permute({2, 0, 3, 1, 4}).contiguous().unbind(0);
  std::vector<at::Tensor> parts = qkv.unbind(2);
  for (at::Tensor& part : parts) part = part.transpose(1, 2);
  return parts;
}

at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& mask) {
#if ISTHMUS_FUSED_ATTENTION
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
#else
  const int64_t pairs = q.size(0) * q.size(1), positions = q.size(2), width = q.size(3);
  const std::vector<int64_t> flat = {pairs, positions, width};
  const at::Tensor keys = k.view(flat).transpose(1, 2);
  const at::Tensor scores =
      at::baddbmm(mask, q.view(flat), keys, 1, 1 / std::sqrt(static_cast<double>(width)));
  return at::bmm(at::softmax(scores, -1), v.view(flat)).view(q.sizes());
#endif
}

}  // namespace

at::Tensor CausalMask(int64_t positions, const at::TensorOptions& options) {
#if ISTHMUS_FUSED_ATTENTION
  return at::Tensor();  // the operator has its own
#else
  return at::full({1, positions, positions}, -std::numeric_limits<double>::infinity(), options)
      .triu_(1);
#endif
}

at::Tensor Embed(const at::Tensor& tokens, const at::Tensor& token_embedding,
                 const at::Tensor& position_embedding) {
  return at::add(at::embedding(token_embedding, tokens),
                 position_embedding.narrow(0, 0, tokens.size(1)));
}

void AddEmbedded(const at::Tensor& tokens, const at::Tensor& gradient, at::Tensor token_gradient,
                 at::Tensor position_gradient) {
  token_gradient.index_add_(0, tokens.view({-1}), gradient.view({-1, gradient.size(2)}));
  position_gradient.narrow(0, 0, gradient.size(1)).add_(gradient.sum(0));
}

at::Tensor Block(const at::Tensor& x, const BlockWeights& w, const BlockShape& shape,
                 const at::Tensor& mask, double norm_epsilon) {
  const int64_t samples = x.size(0), positions = x.size(1), hidden = x.size(2),
                rows = samples * positions, attended_width = w.projection_weight.size(0);
  const at::ScalarType type = w.attention_weight.scalar_type();
  const at::Tensor in = x.reshape({rows, hidden});
  const at::Tensor qkv =
      at::addmm(w.attention_bias, Norm(in, w.norm1_weight, w.norm1_bias, norm_epsilon).to(type),
                w.attention_weight)
          .view({samples, positions, 3, shape.heads, attended_width / shape.heads});
  const std::vector<at::Tensor> split = SplitHeads(qkv);
  const at::Tensor attended =
      Attend(split[0], split[1], split[2], mask).transpose(1, 2).reshape({rows, attended_width});
  const at::Tensor middle = at::add(in, at::addmm(w.projection_bias, attended, w.projection_weight,
                                                  /*beta=*/1, shape.attention_scale));
  const at::Tensor wide = at::gelu(
      at::addmm(w.wide_bias, Norm(middle, w.norm2_weight, w.norm2_bias, norm_epsilon).to(type),
                w.wide_weight),
      "tanh");
  return at::add(middle,
                 at::addmm(w.narrow_bias, wide, w.narrow_weight, /*beta=*/1, shape.mlp_scale))
      .view({samples, positions, hidden});
}

at::Tensor Project(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return at::mm(x.to(weight.scalar_type()).reshape({-1, weight.size(0)}), weight).view(shape);
}

at::Tensor HeadNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    double epsilon) {
  return Norm(x.reshape({-1, x.size(-1)}), weight, bias, epsilon);
}

at::Tensor Logits(const at::Tensor& x, const at::Tensor& token_embedding) {
  return at::mm(x, token_embedding.t());
}

at::Tensor TokenLosses(const at::Tensor& logits, const at::Tensor& targets) {
  return at::nll_loss(at::log_softmax(logits, -1), targets.reshape({-1}), {}, at::Reduction::None);
}

}  // namespace isthmus::engine
