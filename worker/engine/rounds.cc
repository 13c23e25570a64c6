#include "worker/engine/rounds.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

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
  for (const Parameter& p : parameters) {
    kept_.emplace_back();
    if (!p.spec.dealt()) kept_.back() = {OnHost(p.value), at::zeros(p.value.sizes(), at::kFloat)};
  }
}

void Rounds::Agree(int i, int64_t first, absl::Span<const float> weights) {
  if (begun()) std::copy(weights.begin(), weights.end(), kept_[i].agreed.data_ptr<float>() + first);
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

absl::Status Rounds::Apply(GroupPlan::Tensors set, int64_t first, absl::Span<const float> d,
                           const worker::OuterStep& step, std::vector<Parameter>* parameters) {
  RETURN_IF_ERROR(CheckBegun(*this));
  const auto rate = static_cast<float>(step.learning_rate);
  const auto mu = static_cast<float>(step.momentum);
  return ForRange(*parameters, set, first, d.size(),
                  [&](size_t i, int64_t from, int64_t n, int64_t at) {
                    float* agreed = kept_[i].agreed.data_ptr<float>() + from;
                    float* momentum = kept_[i].momentum.data_ptr<float>() + from;
                    for (int64_t k = 0; k < n; ++k) {
                      momentum[k] = mu * momentum[k] + d[at + k];
                      agreed[k] -= rate * (d[at + k] + mu * momentum[k]);
                    }
                    GoOn(i, from, n, static_cast<float>(step.mix), &(*parameters)[i]);
                  });
}

absl::Status Rounds::Restore(GroupPlan::Tensors set, int64_t first, int64_t size,
                             std::vector<Parameter>* parameters) const {
  RETURN_IF_ERROR(CheckBegun(*this));
  return ForRange(*parameters, set, first, size, [&](size_t i, int64_t from, int64_t n, int64_t) {
    GoOn(i, from, n, 0, &(*parameters)[i]);
  });
}

// Elements [from, from + n) of parameter `i`, with a share `mix` of what they are.
void Rounds::GoOn(size_t i, int64_t from, int64_t n, float mix, Parameter* parameter) const {
  at::Tensor value = parameter->value.detach().view({-1}).narrow(0, from, n);
  const at::Tensor agreed = kept_[i].agreed.view({-1}).narrow(0, from, n);
  if (mix == 0) {
    value.copy_(agreed);
    return;
  }
  const at::Tensor mixed = OnHost(value);
  float* w = mixed.data_ptr<float>();
  const float* a = agreed.data_ptr<float>();
  for (int64_t k = 0; k < n; ++k) w[k] = mix * w[k] + (1 - mix) * a[k];
  value.copy_(mixed);
}

}  // namespace isthmus::engine
