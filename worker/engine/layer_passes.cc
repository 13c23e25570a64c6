#include "worker/engine/layer_passes.h"

#include <c10/core/GradMode.h>

#include <cstddef>
#include <utility>

#include "worker/engine/blocks.h"
#include "worker/engine/parameters.h"

namespace isthmus::engine {

LayerPasses::LayerPasses(Layers layers)
    : layers_(std::move(layers)), network_(MakeNetwork(layers_.model, layers_.first == 0)) {}

PassOutputs LayerPasses::Forward(bool train, const PassInputs& in, const HeldSlice* slice,
                                 Version* version, Pass* pass) {
  const std::vector<Parameter>& parameters = version->parameters;
  const bool again = train && layers_.recompute;
  at::Tensor x;
  if (first()) {
    x = network_->Begin(*version, train, in.tokens, pass);
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
    x = network_->End(version, ParameterOf(layers_.end), train, slice, in.targets, x, pass, &out);
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
  if (first()) network_->EndBackward(version, *pass);
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
  return network_->Layer(parameters, ParameterOf(layer), layer, train, slice, x);
}

size_t LayerPasses::ParameterOf(int layer) const {
  const size_t before = first() ? network_->FirstTensors() : layers_.decoder + 1;
  return before + static_cast<size_t>(layer - layers_.first) * network_->LayerTensors();
}

}  // namespace isthmus::engine
