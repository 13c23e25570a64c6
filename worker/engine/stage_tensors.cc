#include "worker/engine/stage_tensors.h"

#include "absl/strings/str_cat.h"
#include "proto/model/tensor_names.h"

namespace isthmus::engine {
namespace {

using worker::StageTensor;

constexpr char kAverage[] = ".exp_avg";
constexpr char kAverageOfSquares[] = ".exp_avg_sq";

}  // namespace

std::vector<StageTensor> StageTensors::List() const {
  std::vector<StageTensor> list;
  const auto add = [&](const Parameter& p, std::string name, StageTensor::Kind kind) {
    list.push_back({std::move(name), p.spec.shape, kind, p.tied && !stores_tied});
  };
  for (const Parameter& p : parameters) add(p, p.spec.name, StageTensor::kWeight);
  for (const Parameter& p : parameters) {
    add(p, p.spec.name + kAverage, StageTensor::kMoment);
    add(p, p.spec.name + kAverageOfSquares, StageTensor::kMoment);
    if (rounds.begun()) add(p, OuterMomentumName(p.spec.name), StageTensor::kOuterMomentum);
  }
  return list;
}

absl::StatusOr<at::Tensor> StageTensors::Range(int i, int64_t first, int64_t size) const {
  const int weights = static_cast<int>(parameters.size());
  if (i < 0 || i >= weights * (1 + Moments()))
    return absl::InvalidArgumentError(absl::StrCat("tensor ", i, " of a stage"));
  at::Tensor tensor;
  if (IsWeight(i)) {
    tensor = parameters[i].value.detach();
  } else {
    const int p = (i - weights) / Moments(), moment = (i - weights) % Moments();
    const AdamWState& state = parameters[p].state;
    tensor = moment == 0 ? state.exp_avg : moment == 1 ? state.exp_avg_sq : rounds.Momentum(p);
  }
  if (first < 0 || size < 0 || first > tensor.numel() - size) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements ", first, " to ", first + size, " of ", tensor.numel()));
  }
  return tensor.view({-1}).narrow(0, first, size);
}

}  // namespace isthmus::engine
