// What a stage stores in checkpoints and reads from them, by name: weights, and the optimiser's
// moments beside them, the outer one of local steps too. For worker/engine alone.
// Thread: pure functions over what the caller owns.
#ifndef ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_
#define ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_

#include <vector>

#include "worker/engine/parameters.h"
#include "worker/engine/rounds.h"
#include "worker/engine/tensor_file.h"

namespace isthmus::engine {

// All; those that this stage stores; or the copy of the tied embedding that another one stores.
enum class Which { kAll, kStored, kCopy };

struct StageTensors {
  const std::vector<Parameter>& parameters;
  const Rounds& rounds;
  bool stores_tied = true;  // it is the first stage

  NamedTensors Weights(Which which) const;
  NamedTensors Optimizer(Which which) const;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_
