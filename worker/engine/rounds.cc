#include "worker/engine/rounds.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"

namespace isthmus::engine {
namespace {

// A copy on the host, also of what is there already.
at::Tensor OnHost(const at::Tensor& value) {
  return value.detach()
      .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

absl::Status CheckBegun(const Rounds& rounds) {
  return rounds.begun()
             ? absl::OkStatus()
             : absl::FailedPreconditionError("the stage has not begun rounds of local steps");
}

}  // namespace

void Rounds::Begin(const std::vector<Parameter>& parameters) {
  kept_.clear();
  for (const Parameter& p : parameters)
    kept_.push_back({OnHost(p.value), at::zeros(p.value.sizes(), at::kFloat)});
}

void Rounds::Agree(const std::vector<Parameter>& parameters) {
  for (size_t i = 0; i < kept_.size(); ++i) kept_[i].agreed = OnHost(parameters[i].value);
}

absl::Status Rounds::Read(const std::vector<Parameter>& parameters, GroupPlan::Tensors set,
                          int64_t first, absl::Span<float> out) const {
  RETURN_IF_ERROR(CheckBegun(*this));
  return ForRange(parameters, set, first, out.size(),
                  [&](size_t i, int64_t from, int64_t n, int64_t at) {
                    const at::Tensor now = parameters[i].value.detach().cpu().contiguous();
                    const float* w = now.data_ptr<float>() + from;
                    const float* agreed = kept_[i].agreed.data_ptr<float>() + from;
                    for (int64_t k = 0; k < n; ++k) out[at + k] = agreed[k] - w[k];
                  });
}

absl::Status Rounds::Apply(GroupPlan::Tensors set, absl::Span<const float> d,
                           const worker::OuterStep& step, std::vector<Parameter>* parameters) {
  RETURN_IF_ERROR(CheckBegun(*this));
  if (static_cast<int64_t>(d.size()) != ElementsOf(*parameters, set))
    return absl::InvalidArgumentError(
        absl::StrCat("differences: ", d.size(), " of ", ElementsOf(*parameters, set), " elements"));
  const auto rate = static_cast<float>(step.learning_rate);
  const auto mu = static_cast<float>(step.momentum);
  return ForRange(*parameters, set, 0, d.size(), [&](size_t i, int64_t, int64_t n, int64_t at) {
    float* agreed = kept_[i].agreed.data_ptr<float>();
    float* momentum = kept_[i].momentum.data_ptr<float>();
    for (int64_t k = 0; k < n; ++k) {
      momentum[k] = mu * momentum[k] + d[at + k];
      agreed[k] -= rate * (d[at + k] + mu * momentum[k]);
    }
    (*parameters)[i].value.detach().copy_(kept_[i].agreed);
  });
}

absl::Status Rounds::Restore(GroupPlan::Tensors set, std::vector<Parameter>* parameters) const {
  RETURN_IF_ERROR(CheckBegun(*this));
  return ForRange(*parameters, set, 0, ElementsOf(*parameters, set),
                  [&](size_t i, int64_t, int64_t, int64_t) {
                    (*parameters)[i].value.detach().copy_(kept_[i].agreed);
                  });
}

std::pair<std::string, at::Tensor> Rounds::Momentum(const std::vector<Parameter>& parameters,
                                                    size_t i) const {
  return {OuterMomentumName(parameters[i].spec.name), kept_[i].momentum};
}

}  // namespace isthmus::engine
