// What a stage stores in checkpoints and takes from them: the weights, in the order of its
// parameters, then the optimiser's moments of each, the outer one of local steps too. For
// worker/engine alone. Thread: pure functions over what the caller owns.
#ifndef ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_
#define ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/engine/parameters.h"
#include "worker/engine/rounds.h"
#include "worker/stage.h"

namespace isthmus::engine {

struct StageTensors {
  const std::vector<Parameter>& parameters;
  const Rounds& rounds;
  bool stores_tied = true;  // it is the first stage

  std::vector<worker::StageTensor> List() const;
  bool IsWeight(int i) const { return i < static_cast<int>(parameters.size()); }
  // Elements [first, first + size) of tensor `i` of the list, as a view. InvalidArgument: they are
  // not all there.
  absl::StatusOr<at::Tensor> Range(int i, int64_t first, int64_t size) const;

 private:
  int Moments() const { return rounds.begun() ? 3 : 2; }  // of a parameter
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_
