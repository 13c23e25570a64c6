// What a stage keeps between two agreements of replicas (worker/stage.h, local steps): the weights
// that they last agreed on, and the outer momentum of each, beside a stage's parameters and in
// their order. On the CPU, in plain IEEE arithmetic: every replica gets the same bits. For
// worker/engine alone. Thread: the owner's.
#ifndef ISTHMUS_WORKER_ENGINE_ROUNDS_H_
#define ISTHMUS_WORKER_ENGINE_ROUNDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/engine/parameters.h"
#include "worker/stage.h"

namespace isthmus::engine {

class Rounds {
 public:
  void Begin(const std::vector<Parameter>& parameters);
  bool begun() const { return !kept_.empty(); }

  // Elements of parameter `i` from `first` on are others now, and agreed on: they were read in.
  void Agree(int i, int64_t first, absl::Span<const float> weights);

  // As the calls of worker::Stage. InvalidArgument: a range beyond the set. FailedPrecondition:
  // before Begin.
  absl::Status Read(const std::vector<Parameter>& parameters, GroupPlan::Tensors set, int64_t first,
                    absl::Span<float> out) const;
  absl::Status Apply(GroupPlan::Tensors set, int64_t first, absl::Span<const float> d,
                     const worker::OuterStep& step, std::vector<Parameter>* parameters);
  absl::Status Restore(GroupPlan::Tensors set, int64_t first, int64_t size,
                       std::vector<Parameter>* parameters) const;

  const at::Tensor& Momentum(int i) const { return kept_[i].momentum; }  // of parameter `i`

 private:
  void GoOn(size_t i, int64_t from, int64_t n, float mix, Parameter* parameter) const;

  struct Kept {
    at::Tensor agreed, momentum;  // fp32, on the host; none of what is dealt to slices
  };
  std::vector<Kept> kept_;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_ROUNDS_H_
