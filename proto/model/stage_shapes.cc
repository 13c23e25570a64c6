#include "proto/model/stage_shapes.h"

#include "proto/job/job_defaults.h"

namespace isthmus {
namespace {

void AddNorm(int64_t h, std::vector<TensorDims>* out) { out->insert(out->end(), 2, {1, 1, h}); }

void AddLinear(int64_t in, int64_t width, std::vector<TensorDims>* out) {
  out->push_back({1, in, width});
  out->push_back({1, 1, width});
}

void AddBlock(int64_t h, std::vector<TensorDims>* out) {
  AddNorm(h, out);
  AddLinear(h, 3 * h, out);
  AddLinear(h, h, out);
  AddNorm(h, out);
  AddLinear(h, 4 * h, out);
  AddLinear(4 * h, h, out);
}

}  // namespace

std::vector<TensorDims> StageShapes(const ModelSpec& model, int first_layer, int end_layer) {
  const int64_t h = model.hidden();
  const bool last = end_layer == model.layers(), tied = IsTied(model);
  std::vector<TensorDims> out;
  if (first_layer == 0) {
    if (last || !tied) out.push_back({1, model.vocabulary(), h});
    out.push_back({1, model.context(), h});
  }
  for (int layer = first_layer; layer < end_layer; ++layer) AddBlock(h, &out);
  if (last) AddNorm(h, &out);
  if (last && !tied) out.push_back({1, model.vocabulary(), h});
  return out;
}

int64_t ElementsOf(const std::vector<TensorDims>& shapes) {
  int64_t elements = 0;
  for (const TensorDims& d : shapes) elements += d.elements();
  return elements;
}

}  // namespace isthmus
