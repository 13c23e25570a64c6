#include "worker/engine/mlp.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/model/family.h"

namespace isthmus::engine {
namespace {

void AddDense(const std::string& name, int64_t in, int64_t out, double variance,
              std::vector<ParameterSpec>* specs) {
  specs->push_back(
      {name + ".weight", {in, out}, true, std::sqrt(variance / static_cast<double>(in)), 0});
  specs->push_back({name + ".bias", {out}, false, 0, 0});
}

// Of a stage with all layers, what a slice holds.
void Deal(const Slice& held, std::vector<ParameterSpec>* specs) {
  for (size_t i = 0; i + 1 < specs->size(); ++i) {
    ParameterSpec& spec = (*specs)[i];
    const size_t layer = i / kDenseTensors;
    const bool output = layer == held.size();
    const LayerSlice& own = held[output ? layer - 1 : layer];
    spec.dealt_by = output ? DealtBy::kUnitRows : DealtBy::kUnitColumns;
    spec.layer = static_cast<int>(output ? layer - 1 : layer);
    spec.whole = spec.shape;
    spec.indices = {own.units.begin(), own.units.end()};
    spec.shape[spec.axis()] = static_cast<int64_t>(spec.indices.size());
    if (output || layer == 0 || spec.shape.size() == 1) continue;
    const LayerSlice& before = held[layer - 1];
    spec.rows = {before.units.begin(), before.units.end()};
    spec.shape[0] = static_cast<int64_t>(spec.rows.size());
  }
}

}  // namespace

std::vector<ParameterSpec> MlpParameters(const ModelSpec& model, int first_layer, int end_layer,
                                         const Slice& held) {
  std::vector<ParameterSpec> specs;
  for (int layer = first_layer; layer < end_layer; ++layer)
    AddDense(absl::StrCat("mlp.layers.", layer), WidthInto(model, layer), model.hidden(), 2,
             &specs);
  if (end_layer == model.layers())
    AddDense("mlp.output", model.hidden(), model.classes(), 1, &specs);
  if (!held.empty()) Deal(held, &specs);
  return specs;
}

at::Tensor RowValues(const at::Tensor& ids) {
  return ids.to(at::kFloat).div_(kRowValues - 1).view({ids.size(0), 1, ids.size(1)});
}

at::Tensor Dense(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 double scale) {
  const int64_t in = weight.size(0);
  return at::addmm(bias, x.to(weight.scalar_type()).reshape({-1, in}), weight, /*beta=*/1, scale)
      .to(at::kFloat)
      .view({x.size(0), 1, weight.size(1)});
}

at::Tensor HiddenLayer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       double scale) {
  return at::relu(Dense(x, weight, bias, scale));
}

at::Tensor CountCorrect(const at::Tensor& logits, const at::Tensor& targets) {
  return at::sum(at::eq(at::argmax(logits, -1), targets));
}

}  // namespace isthmus::engine
