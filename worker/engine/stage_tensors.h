// What a stage stores in checkpoints and takes from them: the weights, in the order of its
// parameters, then the optimiser's moments of each, the outer one of local steps too. For
// worker/engine alone. Thread: pure functions over what the caller owns.
#ifndef ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_
#define ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/parameters.h"
#include "worker/engine/rounds.h"
#include "worker/stage.h"

namespace isthmus::engine {

struct StageTensors {
  const std::vector<Parameter>& parameters;
  const Rounds& rounds;
  bool stores_tied = true;  // it is the first stage

  // Of parameters that are dealt to slices: the shape of the whole ones; their moments where the
  // whole model is together.
  std::vector<worker::StageTensor> List() const;
  // Elements [first, first + out.size()) of tensor `i` of the list. InvalidArgument: they are not
  // all there. FailedPrecondition: of what is dealt, while the whole model is not together.
  absl::Status Read(int i, int64_t first, absl::Span<float> out) const;
  // What is written to a weight is agreed on, too: `agreed` is `rounds`.
  absl::Status Write(int i, int64_t first, absl::Span<const float> in, Rounds* agreed) const;

 private:
  struct Entry {
    int parameter = 0;
    worker::StageTensor::Kind kind = worker::StageTensor::kWeight;
    int moment = 0;
  };
  std::vector<Entry> Entries() const;
  absl::StatusOr<Entry> EntryOf(int i, int64_t first, int64_t size) const;
  at::Tensor Values(const Entry& entry) const;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_STAGE_TENSORS_H_
