#include "worker/engine/parameters.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>

namespace isthmus::engine {
int64_t ElementsOf(const std::vector<Parameter>& parameters, GroupPlan::Tensors set) {
  int64_t elements = 0;
  for (const Parameter& p : parameters) {
    if (In(p, set)) elements += p.value.numel();
  }
  return elements;
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
        const at::Tensor host = grad.detach().contiguous().view({-1}).narrow(0, from, n).cpu();
        std::memcpy(out.data() + at, host.data_ptr<float>(), n * sizeof(float));
      });
}

absl::Status WriteGradients(GroupPlan::Tensors set, int64_t first, absl::Span<const float> in,
                            std::vector<Parameter>* parameters) {
  return ForRange(
      *parameters, set, first, in.size(), [&](size_t i, int64_t from, int64_t n, int64_t at) {
        Parameter& p = (*parameters)[i];
        at::Tensor& grad = p.value.mutable_grad();
        if (!grad.defined()) grad = at::zeros_like(p.value.detach());
        if (!grad.is_contiguous()) grad = grad.contiguous();
        const at::Tensor host = at::from_blob(const_cast<float*>(in.data()) + at, {n}, at::kFloat);
        grad.view({-1}).narrow(0, from, n).copy_(host);
      });
}

}  // namespace isthmus::engine
