#include "proto/model/stage_shapes.h"

#include "proto/job/job_defaults.h"
#include "proto/model/family.h"

namespace isthmus {
namespace {

void AddNorm(int64_t h, std::vector<TensorDims>* out) { out->insert(out->end(), 2, {1, 1, h}); }

void AddLinear(int64_t in, int64_t width, std::vector<TensorDims>* out) {
  out->push_back({1, in, width});
  out->push_back({1, 1, width});
}

void AddBlock(int64_t h, bool dealt, std::vector<TensorDims>* out) {
  AddNorm(h, out);
  if (dealt) {
    out->push_back({1, 1, h});
    AddNorm(h, out);
    out->push_back({1, 1, h});
    return;
  }
  AddLinear(h, 3 * h, out);
  AddLinear(h, h, out);
  AddNorm(h, out);
  AddLinear(h, 4 * h, out);
  AddLinear(4 * h, h, out);
}

// What is dealt goes with the units: all but the last bias.
LayerTensors MlpLayers(const ModelSpec& model, int first_layer, int end_layer,
                       const std::function<bool(int layer)>& dealt) {
  LayerTensors layers(end_layer - first_layer);
  for (int layer = first_layer; layer < end_layer; ++layer) {
    const bool whole = dealt == nullptr || !dealt(layer);
    std::vector<TensorDims>& out = layers[layer - first_layer];
    if (whole) AddLinear(WidthInto(model, layer), model.hidden(), &out);
    if (layer + 1 < model.layers()) continue;
    if (whole) out.push_back({1, model.hidden(), model.classes()});
    out.push_back({1, 1, model.classes()});
  }
  return layers;
}

}  // namespace

LayerTensors StageLayers(const ModelSpec& model, int first_layer, int end_layer,
                         const std::function<bool(int layer)>& dealt) {
  if (IsMlp(model)) return MlpLayers(model, first_layer, end_layer, dealt);
  const int64_t h = model.hidden();
  const bool last = end_layer == model.layers(), tied = IsTied(model);
  LayerTensors layers(end_layer - first_layer);
  if (first_layer == 0) {
    if (last || !tied) layers.front().push_back({1, model.vocabulary(), h});
    layers.front().push_back({1, model.context(), h});
  }
  for (int layer = first_layer; layer < end_layer; ++layer)
    AddBlock(h, dealt != nullptr && dealt(layer), &layers[layer - first_layer]);
  if (last) AddNorm(h, &layers.back());
  if (last && !tied) layers.back().push_back({1, model.vocabulary(), h});
  return layers;
}

std::vector<TensorDims> AllOf(const LayerTensors& layers) {
  std::vector<TensorDims> all;
  for (const std::vector<TensorDims>& layer : layers)
    all.insert(all.end(), layer.begin(), layer.end());
  return all;
}

std::vector<int64_t> EndsOf(const LayerTensors& layers) {
  std::vector<int64_t> ends;
  for (const std::vector<TensorDims>& layer : layers)
    ends.push_back((ends.empty() ? 0 : ends.back()) + ElementsOf(layer));
  return ends;
}

std::vector<TensorDims> StageShapes(const ModelSpec& model, int first_layer, int end_layer) {
  return AllOf(StageLayers(model, first_layer, end_layer));
}

int64_t ElementsOf(const std::vector<TensorDims>& shapes) {
  int64_t elements = 0;
  for (const TensorDims& d : shapes) elements += d.elements();
  return elements;
}

}  // namespace isthmus
