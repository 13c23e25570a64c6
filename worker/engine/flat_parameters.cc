#include "worker/engine/flat_parameters.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "worker/engine/cuda/kernels.h"
#include "worker/engine/device_tensor.h"

namespace isthmus::engine {
namespace {

// Each parameter begins at a multiple of 256 bytes of bf16. What lies between stays zero.
constexpr int64_t kAlignment = 128;

int64_t Aligned(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

FlatParameters::Group FlatParameters::GroupOf(const Parameter& p) {
  if (p.tied) return kTied;
  if (p.spec.dealt()) return p.spec.decay ? kDealtDecay : kDealtNoDecay;
  return p.spec.decay ? kDecay : kNoDecay;
}

FlatParameters::FlatParameters(c10::Device device, Precision precision,
                               std::vector<Parameter>* parameters)
    : parameters_(parameters) {
  for (int group = 0; group < kGroups; ++group) {
    begin_[group + 1] = begin_[group];
    for (const Parameter& p : *parameters) {
      if (GroupOf(p) == group) begin_[group + 1] += Aligned(p.value.numel());
    }
  }
  const int64_t all = begin_[kGroups];
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  values_ = at::zeros({all}, fp32);
  gradients_ = at::zeros({all}, fp32);
  averages_ = at::zeros({all}, fp32);
  averages_of_squares_ = at::zeros({all}, fp32);
  if (precision == Precision::kBf16) copies_ = at::zeros({all}, fp32.dtype(at::kBFloat16));
  MakeViews();
}

FlatParameters::FlatParameters(const FlatParameters& first, std::vector<Parameter>* parameters)
    : parameters_(parameters),
      values_(at::zeros_like(first.values_)),
      gradients_(at::zeros_like(first.gradients_)),
      averages_(first.averages_),
      averages_of_squares_(first.averages_of_squares_) {
  if (first.copies_.defined()) copies_ = at::zeros_like(first.copies_);
  std::copy_n(first.begin_, kGroups + 1, begin_);
  MakeViews();
}

void FlatParameters::Take(const FlatParameters& from) {
  const c10::AutoGradMode no_gradients(false);
  values_.copy_(from.values_);
  Changed();
}

void FlatParameters::Forecast(const FlatParameters& after, double share) {
  Extrapolate(after.values_, share, values_);
  Changed();
}

// Also copies the values of the parameters as they are, and puts the views in their place.
void FlatParameters::MakeViews() {
  int64_t next[kGroups];
  std::copy_n(begin_, static_cast<int>(kGroups), next);
  for (Parameter& p : *parameters_) {
    const int64_t at = next[GroupOf(p)], n = p.value.numel();
    next[GroupOf(p)] += Aligned(n);
    const auto view = [&](const at::Tensor& run) {
      return run.narrow(0, at, n).view(p.spec.shape).detach();
    };
    at::Tensor value = view(values_);
    value.copy_(p.value.detach());
    value.mutable_grad() = view(gradients_);
    p.operand = copies_.defined() && p.in_products ? view(copies_) : value;
    p.operand.requires_grad_(true);
    p.state = {view(averages_), view(averages_of_squares_)};
    p.value = std::move(value);
  }
}

void FlatParameters::Refresh() {
  if (changed_ && copies_.defined()) copies_.copy_(values_);
  changed_ = false;
}

void FlatParameters::AddUp() {
  if (!copies_.defined()) return;
  const c10::AutoGradMode no_gradients(false);
  const bool by_kernel = copies_.is_cuda() && HaveKernels();
  std::vector<Bf16Sum> sums;
  std::vector<at::Tensor> used;  // until they are queued
  for (Parameter& p : *parameters_) {
    at::Tensor& gradient = p.operand.mutable_grad();
    if (!p.in_products || !gradient.defined()) continue;
    if (by_kernel) {
      used.push_back(gradient.contiguous());
      sums.push_back(
          {used.back().data_ptr(), p.value.mutable_grad().data_ptr<float>(), gradient.numel()});
    } else {
      p.value.mutable_grad().add_(gradient);
    }
    gradient = at::Tensor();
  }
  if (by_kernel) {
    ThrowIf(
        AddBf16Kernel(QueueOf(copies_.device()), sums.data(), static_cast<int64_t>(sums.size())),
        "sums of gradients");
  }
}

double FlatParameters::SumOfSquares(bool with_tied) const {
  const int64_t end = begin_[with_tied ? kGroups : kTied];
  return end == 0 ? 0 : engine::SumOfSquares(gradients_.narrow(0, 0, end));
}

void FlatParameters::Update(const AdamWOptions& options, const AdamWStep& step,
                            const FlatParameters& gradients) {
  for (int group = 0; group < kGroups; ++group) {
    const int64_t n = begin_[group + 1] - begin_[group];
    if (n == 0) continue;
    const auto part = [&](const at::Tensor& run) { return run.narrow(0, begin_[group], n); };
    AdamWState state = {part(averages_), part(averages_of_squares_)};
    const bool dealt = group == kDealtDecay || group == kDealtNoDecay;
    AdamWUpdate(options, dealt ? step.OfDealt() : step, group != kNoDecay && group != kDealtNoDecay,
                part(gradients.gradients_), part(values_), &state);
  }
  Changed();
}

void FlatParameters::ClearGradients() {
  gradients_.zero_();
  for (Parameter& p : *parameters_) {
    if (copies_.defined() && p.in_products) p.operand.mutable_grad() = at::Tensor();
  }
}

}  // namespace isthmus::engine
