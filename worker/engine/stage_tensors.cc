#include "worker/engine/stage_tensors.h"

namespace isthmus::engine {
namespace {

constexpr char kAverage[] = ".exp_avg";
constexpr char kAverageOfSquares[] = ".exp_avg_sq";

bool Is(const Parameter& p, bool stores_tied, Which which) {
  const bool stored = !p.tied || stores_tied;
  return which == Which::kAll || stored == (which == Which::kStored);
}

}  // namespace

NamedTensors StageTensors::Weights(Which which) const {
  NamedTensors tensors;
  for (const Parameter& p : parameters) {
    if (Is(p, stores_tied, which)) tensors.emplace_back(p.spec.name, p.value.detach());
  }
  return tensors;
}

NamedTensors StageTensors::Optimizer(Which which) const {
  NamedTensors tensors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!Is(p, stores_tied, which)) continue;
    tensors.emplace_back(p.spec.name + kAverage, p.state.exp_avg);
    tensors.emplace_back(p.spec.name + kAverageOfSquares, p.state.exp_avg_sq);
    if (rounds.begun()) tensors.push_back(rounds.Momentum(parameters, i));
  }
  return tensors;
}

}  // namespace isthmus::engine
