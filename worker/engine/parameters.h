// The parameters of a stage, and sets of their gradients as one run of numbers (worker/stage.h).
// Thread: pure functions over what the caller owns.
#ifndef ISTHMUS_WORKER_ENGINE_PARAMETERS_H_
#define ISTHMUS_WORKER_ENGINE_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/plan.pb.h"
#include "worker/engine/adamw.h"
#include "worker/engine/blocks.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {

struct Parameter {
  ParameterSpec spec;
  at::Tensor value;  // fp32; its grad() adds up
  // The leaf that products take: `value`, or its bf16 copy (flat_parameters.h).
  at::Tensor operand;
  at::Tensor whole;  // of one that is dealt: the whole model's, while that is together
  // Of one that is held in more rows than are trained (spec.rows): what is held, weights alone. The
  // rows in play are out of date here until the end of a round.
  at::Tensor resting;
  AdamWState state;
  bool tied = false;        // one of two copies of the token embedding
  bool in_products = true;  // else of a norm, whose arithmetic is fp32 in every precision
};

int64_t ElementsOf(const std::vector<Parameter>& parameters, GroupPlan::Tensors set);

inline bool In(const Parameter& p, GroupPlan::Tensors set) {
  return p.tied == (set == GroupPlan::TIED) && !p.spec.dealt();
}

// Calls `use(i, from, n, at)` for each piece of elements [first, first + size) of the set: n
// elements of parameters[i] from `from` on, which begin at `at` of the range. InvalidArgument:
// beyond the set.
template <typename Use>
absl::Status ForRange(const std::vector<Parameter>& parameters, GroupPlan::Tensors set,
                      int64_t first, int64_t size, Use use) {
  const int64_t elements = ElementsOf(parameters, set);
  if (first < 0 || first + size > elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements ", first, " to ", first + size, " of ", elements));
  }
  int64_t begin = 0;  // of the parameter, in the set
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!In(parameters[i], set)) continue;
    const int64_t end = begin + parameters[i].value.numel();
    const int64_t from = std::max(first, begin), to = std::min(first + size, end);
    if (from < to) use(i, from - begin, to - from, from - first);
    begin = end;
  }
  return absl::OkStatus();
}

// In the order of a block's weights, from the one at `i` on.
BlockWeights WeightsAt(const std::vector<Parameter>& parameters, size_t i);
// What products of the whole model take, where a slice holds a part of it and that is together;
// else the operand.
at::Tensor WholeOperand(const Parameter& p);
BlockWeights WholeWeightsAt(const std::vector<Parameter>& parameters, size_t i);

// Of the gradients that there are, the tied ones among them or not.
double SumOfSquares(const std::vector<Parameter>& parameters, bool with_tied);

// Elements [first, first + size) of the set. InvalidArgument: beyond it.
absl::Status ReadGradients(const std::vector<Parameter>& parameters, GroupPlan::Tensors set,
                           int64_t first, absl::Span<float> out);
absl::Status WriteGradients(GroupPlan::Tensors set, int64_t first, absl::Span<const float> in,
                            std::vector<Parameter>* parameters);

// worker::Stage::TakeMomentum, in plain IEEE arithmetic: these gradients of the set become
// share x beta1 x exp_avg + (1 - beta1) x gradient.
absl::Status TakeMoments(GroupPlan::Tensors set, int64_t first, int64_t size, double share,
                         double beta1, std::vector<Parameter>* parameters);

// Gradients of the set, which are defined, from its `first` on as a run of `elements` in memory of
// their device: zeros behind the set's end. InvalidArgument: it ends before `first`.
absl::StatusOr<at::Tensor> CopyGradients(std::vector<Parameter>* parameters, GroupPlan::Tensors set,
                                         int64_t first, int64_t elements);
absl::Status PutGradients(GroupPlan::Tensors set, int64_t first, const at::Tensor& from,
                          std::vector<Parameter>* parameters);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_PARAMETERS_H_
