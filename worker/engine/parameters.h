// The parameters of a stage, and sets of their gradients as one run of numbers (worker/stage.h).
// Thread: pure functions over what the caller owns.
#ifndef ISTHMUS_WORKER_ENGINE_PARAMETERS_H_
#define ISTHMUS_WORKER_ENGINE_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/plan.pb.h"
#include "worker/engine/adamw.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {

struct Parameter {
  ParameterSpec spec;
  at::Tensor value;  // fp32; its grad() adds up
  // The leaf that products take: `value`, or its bf16 copy (flat_parameters.h).
  at::Tensor operand;
  AdamWState state;
  bool tied = false;        // one of two copies of the token embedding
  bool in_products = true;  // else of a norm, whose arithmetic is fp32 in every precision
};

int64_t ElementsOf(const std::vector<Parameter>& parameters, GroupPlan::Tensors set);

// Elements [first, first + size) of the set. InvalidArgument: beyond it.
absl::Status ReadGradients(const std::vector<Parameter>& parameters, GroupPlan::Tensors set,
                           int64_t first, absl::Span<float> out);
absl::Status WriteGradients(GroupPlan::Tensors set, int64_t first, absl::Span<const float> in,
                            std::vector<Parameter>* parameters);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_PARAMETERS_H_
