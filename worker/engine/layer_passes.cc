#include "worker/engine/layer_passes.h"

#include <c10/core/GradMode.h>

#include <cstddef>
#include <utility>

#include "proto/job/job_defaults.h"
#include "worker/engine/blocks.h"
#include "worker/engine/head.h"
#include "worker/engine/parameters.h"

namespace isthmus::engine {

LayerPasses::LayerPasses(Layers layers)
    : layers_(std::move(layers)), norm_epsilon_(NormEpsilon(layers_.model)) {}

PassOutputs LayerPasses::Forward(bool train, const PassInputs& in, const HeldSlice* slice,
                                 Version* version, Pass* pass) {
  const std::vector<Parameter>& parameters = version->parameters;
  const bool again = train && layers_.recompute;
  at::Tensor x;
  if (first()) {
    x = EmbedTokens(*version, train, in.tokens, pass);
  } else {
    pass->input = in.activation.detach().requires_grad_(train);
    x = layers_.decoder < 0
            ? pass->input
            : Project(pass->input, parameters[layers_.decoder].operand).to(at::kFloat);
  }
  if (again) pass->bottom = x;
  for (int layer = layers_.first; layer < layers_.end; ++layer) {
    if (again) {
      const c10::AutoGradMode no_gradients(false);
      pass->layer_inputs.push_back(x.detach());
      x = Layer(layer, pass->layer_inputs.back(), train, slice, parameters);
      continue;
    }
    for (size_t c = layers_.cuts.size(); train && c-- > 0;) {
      if (layers_.cuts[c] != layer) continue;
      pass->cuts.push_back({x, x.detach().requires_grad_(true)});
      x = pass->cuts.back().above;
    }
    x = Layer(layer, x, train, slice, parameters);
  }
  if (again && (last() || layers_.encoder >= 0)) x = pass->top = x.detach().requires_grad_(true);
  PassOutputs out;
  if (last()) {
    x = Head(x, train, in.targets, version, pass, &out);
  } else {
    if (layers_.encoder >= 0) x = Project(x, parameters[layers_.encoder].operand);
    out.activation = x.detach();
  }
  if (!again || pass->top.defined()) pass->output = std::move(x);
  return out;
}

at::Tensor LayerPasses::Backward(const at::Tensor& gradient, const HeldSlice* slice,
                                 Version* version, Pass* pass) {
  const auto& flat = version->flat;
  // What the embedding's two uses add up to is added as one, as a pass of one piece does.
  const bool apart =
      first() && last() && flat == nullptr && (!layers_.cuts.empty() || layers_.recompute);
  at::Tensor& tied = version->parameters[0].value.mutable_grad();
  if (apart && !pass->from_cut.defined()) std::swap(tied, pass->tied_before);
  bool more = false;
  if (layers_.recompute) {
    more = DifferentiateAgain(gradient, slice, version->parameters, pass);
  } else {
    DifferentiateOutput(*pass, gradient);
    more = GoToNextPiece(pass);
  }
  if (flat != nullptr) flat->AddUp();
  if (more) return at::Tensor();
  if (apart && pass->tied_before.defined()) tied = pass->tied_before.add_(tied);
  if (first() && flat != nullptr) {
    AddEmbedded(pass->tokens, pass->input.grad(), version->parameters[0].value.mutable_grad(),
                version->parameters[1].value.mutable_grad());
  }
  return first() ? at::Tensor() : pass->input.grad();
}

bool LayerPasses::DifferentiateAgain(const at::Tensor& gradient, const HeldSlice* slice,
                                     const std::vector<Parameter>& parameters, Pass* pass) {
  const c10::AutoGradMode gradients(true);
  at::Tensor g = pass->from_cut.defined() ? pass->from_cut : gradient;
  if (pass->top.defined()) {
    DifferentiateOutput(*pass, gradient);
    g = pass->top.grad();
    pass->output = pass->top = pass->head_gradient = at::Tensor();
  }
  // Down to the first cut that is below what is left.
  int layer = layers_.first + static_cast<int>(pass->layer_inputs.size()), end = layers_.first;
  for (const int cut : layers_.cuts) {
    if (cut < layer) {
      end = cut;
      break;
    }
  }
  while (layer > end) {
    --layer;
    const at::Tensor in = std::move(pass->layer_inputs.back()).requires_grad_(true);
    pass->layer_inputs.pop_back();
    Layer(layer, in, /*train=*/true, slice, parameters).backward(g);
    g = in.grad();
  }
  pass->from_cut = g;
  if (layer > layers_.first) return true;
  pass->bottom.backward(g);
  return false;
}

at::Tensor LayerPasses::Layer(int layer, const at::Tensor& x, bool train, const HeldSlice* slice,
                              const std::vector<Parameter>& parameters) {
  const size_t at = ParameterOf(layer);
  return Block(x, train ? WeightsAt(parameters, at) : WholeWeightsAt(parameters, at),
               slice != nullptr ? slice->ShapeOf(layer, !train) : BlockShape{layers_.model.heads()},
               Mask(x.size(1), parameters.front().operand), norm_epsilon_);
}

// Flat parameters: no graph, which would make a gradient as large as the table of each
// micro-batch.
at::Tensor LayerPasses::EmbedTokens(const Version& version, bool train, const at::Tensor& tokens,
                                    Pass* pass) const {
  const at::Tensor &wte = version.parameters[0].value, &wpe = version.parameters[1].value;
  if (version.flat == nullptr) return Embed(tokens, wte, wpe);
  const c10::AutoGradMode no_gradients(false);
  pass->tokens = tokens;
  pass->input = Embed(tokens, wte, wpe);
  return pass->input.requires_grad_(train);
}

// What the backward pass begins with.
at::Tensor LayerPasses::Head(const at::Tensor& x, bool train, const at::Tensor& targets,
                             Version* version, Pass* pass, PassOutputs* out) const {
  std::vector<Parameter>& parameters = version->parameters;
  const size_t at = ParameterOf(layers_.end);
  Parameter& embedding = first() && IsTied(layers_.model) ? parameters.front() : parameters[at + 2];
  const at::Tensor in =
      HeadNorm(x, parameters[at].operand, parameters[at + 1].operand, norm_epsilon_);
  if (version->flat == nullptr) {
    const at::Tensor losses = TokenLosses(Logits(in, embedding.operand), targets);
    out->loss = losses.detach().sum(at::kDouble);
    return losses;
  }
  const at::Tensor typed = in.to(embedding.operand.scalar_type());
  HeadOptions options;
  options.scale = pass->loss_scale;
  options.gradients = train;
  HeadResult result = HeadLoss(typed.detach(), embedding.operand.detach(), targets.view({-1}),
                               options, embedding.value.grad());
  pass->head_gradient = std::move(result.gradient);
  out->loss = std::move(result.loss);
  return typed;
}

const at::Tensor& LayerPasses::Mask(int64_t positions, const at::Tensor& like) {
  if (mask_positions_ != positions) {
    mask_ = CausalMask(positions, like.options().requires_grad(false));
    mask_positions_ = positions;
  }
  return mask_;
}

size_t LayerPasses::ParameterOf(int layer) const {
  const size_t before = first() ? 2 : layers_.decoder + 1;
  return before + static_cast<size_t>(layer - layers_.first) * kBlockTensors;
}

}  // namespace isthmus::engine
