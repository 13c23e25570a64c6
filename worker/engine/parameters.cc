#include "worker/engine/parameters.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace isthmus::engine {
namespace {

bool In(const Parameter& p, GroupPlan::Tensors set) { return p.tied == (set == GroupPlan::TIED); }

// Calls `use(parameter, from, n, at)` for each piece of the range: n elements of the parameter from
// `from` on, which begin at `at` of the range.
template <typename Parameters, typename Use>
absl::Status ForRange(Parameters& parameters, GroupPlan::Tensors set, int64_t first, int64_t size,
                      Use use) {
  const int64_t elements = ElementsOf(parameters, set);
  if (first < 0 || first + size > elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements ", first, " to ", first + size, " of ", elements));
  }
  int64_t begin = 0;  // of the parameter, in the set
  for (auto& p : parameters) {
    if (!In(p, set)) continue;
    const int64_t end = begin + p.value.numel();
    const int64_t from = std::max(first, begin), to = std::min(first + size, end);
    if (from < to) use(p, from - begin, to - from, from - first);
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ElementsOf(const std::vector<Parameter>& parameters, GroupPlan::Tensors set) {
  int64_t elements = 0;
  for (const Parameter& p : parameters) {
    if (In(p, set)) elements += p.value.numel();
  }
  return elements;
}

absl::Status ReadGradients(const std::vector<Parameter>& parameters, GroupPlan::Tensors set,
                           int64_t first, absl::Span<float> out) {
  return ForRange(parameters, set, first, out.size(),
                  [&](const Parameter& p, int64_t from, int64_t n, int64_t at) {
                    const at::Tensor& grad = p.value.grad();
                    if (!grad.defined()) {
                      std::fill_n(out.data() + at, n, 0.0f);
                      return;
                    }
                    const at::Tensor host =
                        grad.detach().contiguous().view({-1}).narrow(0, from, n).cpu();
                    std::memcpy(out.data() + at, host.data_ptr<float>(), n * sizeof(float));
                  });
}

absl::Status WriteGradients(GroupPlan::Tensors set, int64_t first, absl::Span<const float> in,
                            std::vector<Parameter>* parameters) {
  return ForRange(
      *parameters, set, first, in.size(), [&](Parameter& p, int64_t from, int64_t n, int64_t at) {
        at::Tensor& grad = p.value.mutable_grad();
        if (!grad.defined()) grad = at::zeros_like(p.value.detach());
        if (!grad.is_contiguous()) grad = grad.contiguous();
        const at::Tensor host = at::from_blob(const_cast<float*>(in.data()) + at, {n}, at::kFloat);
        grad.view({-1}).narrow(0, from, n).copy_(host);
      });
}

}  // namespace isthmus::engine
