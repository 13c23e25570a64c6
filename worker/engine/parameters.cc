#include "worker/engine/parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/engine/host_copy.h"

namespace isthmus::engine {
namespace {

// Of the parameter, to write to: zeros where there was none.
const at::Tensor& Gradient(Parameter* p) {
  at::Tensor& gradient = p->value.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(p->value.detach());
  if (!gradient.is_contiguous()) gradient = gradient.contiguous();
  return gradient;
}

}  // namespace

int64_t ElementsOf(const std::vector<Parameter>& parameters, GroupPlan::Tensors set) {
  int64_t elements = 0;
  for (const Parameter& p : parameters) {
    if (In(p, set)) elements += p.value.numel();
  }
  return elements;
}

namespace {

template <typename At>
BlockWeights TwelveFrom(size_t i, At at) {
  return {at(i),     at(i + 1), at(i + 2), at(i + 3), at(i + 4),  at(i + 5),
          at(i + 6), at(i + 7), at(i + 8), at(i + 9), at(i + 10), at(i + 11)};
}

}  // namespace

BlockWeights WeightsAt(const std::vector<Parameter>& parameters, size_t i) {
  return TwelveFrom(i, [&](size_t k) { return parameters[k].operand; });
}

at::Tensor WholeOperand(const Parameter& p) {
  return p.whole.defined() ? p.whole.to(p.operand.scalar_type()) : p.operand;
}

BlockWeights WholeWeightsAt(const std::vector<Parameter>& parameters, size_t i) {
  return TwelveFrom(i, [&](size_t k) { return WholeOperand(parameters[k]); });
}

double SumOfSquares(const std::vector<Parameter>& parameters, bool with_tied) {
  double sum = 0;
  for (const Parameter& p : parameters) {
    const at::Tensor& grad = p.value.grad();
    if (grad.defined() && (with_tied || !p.tied)) sum += SumOfSquares(grad);
  }
  return sum;
}

absl::Status ReadGradients(const std::vector<Parameter>& parameters, GroupPlan::Tensors set,
                           int64_t first, absl::Span<float> out) {
  return ForRange(
      parameters, set, first, out.size(), [&](size_t i, int64_t from, int64_t n, int64_t at) {
        const at::Tensor& grad = parameters[i].value.grad();
        if (!grad.defined()) {
          std::fill_n(out.data() + at, n, 0.0f);
          return;
        }
        CopyOut(grad.detach().contiguous().view({-1}).narrow(0, from, n), out.data() + at);
      });
}

absl::Status WriteGradients(GroupPlan::Tensors set, int64_t first, absl::Span<const float> in,
                            std::vector<Parameter>* parameters) {
  return ForRange(*parameters, set, first, in.size(),
                  [&](size_t i, int64_t from, int64_t n, int64_t at) {
                    const at::Tensor& grad = Gradient(&(*parameters)[i]);
                    CopyIn(in.data() + at, grad.view({-1}).narrow(0, from, n));
                  });
}

absl::Status TakeMoments(GroupPlan::Tensors set, int64_t first, int64_t size, double share,
                         double beta1, std::vector<Parameter>* parameters) {
  const c10::AutoGradMode no_gradients(false);
  return ForRange(*parameters, set, first, size, [&](size_t i, int64_t from, int64_t n, int64_t) {
    Parameter& p = (*parameters)[i];
    const at::Tensor gradient = Gradient(&p).view({-1}).narrow(0, from, n);
    const at::Tensor moment = p.state.exp_avg.view({-1}).narrow(0, from, n);
    gradient.mul_(static_cast<float>(1 - beta1));
    if (share != 0) gradient.add_(at::mul(moment, static_cast<float>(share * beta1)));
  });
}

absl::StatusOr<at::Tensor> CopyGradients(std::vector<Parameter>* parameters, GroupPlan::Tensors set,
                                         int64_t first, int64_t elements) {
  const int64_t there = std::min(ElementsOf(*parameters, set) - first, elements);
  if (there <= 0)
    return absl::InvalidArgumentError(
        absl::StrCat("element ", first, " of a set of ", ElementsOf(*parameters, set)));
  const at::Tensor all =
      at::empty({elements}, (*parameters)[0].value.options().requires_grad(false));
  RETURN_IF_ERROR(
      ForRange(*parameters, set, first, there, [&](size_t i, int64_t from, int64_t n, int64_t at) {
        all.narrow(0, at, n).copy_(
            (*parameters)[i].value.grad().detach().reshape({-1}).narrow(0, from, n));
      }));
  all.narrow(0, there, elements - there).zero_();
  return all;
}

absl::Status PutGradients(GroupPlan::Tensors set, int64_t first, const at::Tensor& from,
                          std::vector<Parameter>* parameters) {
  const int64_t there = std::min(ElementsOf(*parameters, set) - first, from.numel());
  return ForRange(*parameters, set, first, there,
                  [&](size_t i, int64_t begin, int64_t n, int64_t at) {
                    (*parameters)[i]
                        .value.mutable_grad()
                        .view({-1})
                        .narrow(0, begin, n)
                        .copy_(from.narrow(0, at, n));
                  });
}

}  // namespace isthmus::engine
