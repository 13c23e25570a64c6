#include "worker/engine/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/version.h>

#include <algorithm>
#include <memory>

#include "worker/engine/cuda/kernels.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/host_copy.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

// Rows whose softmax LibTorch's operators compute at once, in fp32.
constexpr int64_t kOperatorRows = 512;

// As CrossEntropyKernel.
void CrossEntropyInOperators(at::Tensor logits, const at::Tensor& targets, at::Tensor losses,
                             const HeadOptions& o) {
  for (int64_t at = 0; at < logits.size(0); at += kOperatorRows) {
    const int64_t n = std::min(kOperatorRows, logits.size(0) - at);
    at::Tensor part = logits.narrow(0, at, n);
    const at::Tensor target = targets.narrow(0, at, n).view({n, 1});
    at::Tensor logs = at::log_softmax(part.to(at::kFloat), -1);
    losses.narrow(0, at, n).copy_(logs.gather(1, target).view({n}).neg());
    if (!o.gradients) continue;
    logs.exp_();
    logs.scatter_(1, target, logs.gather(1, target).sub_(1));
    part.copy_(logs.mul_(o.scale));
  }
}

void CrossEntropy(at::Tensor logits, const at::Tensor& targets, at::Tensor losses,
                  const HeadOptions& o) {
  if (!logits.is_cuda() || !HaveKernels()) {
    CrossEntropyInOperators(logits, targets, losses, o);
    return;
  }
  ThrowIf(CrossEntropyKernel(QueueOf(logits.device()), logits.data_ptr(),
                             logits.scalar_type() == at::kBFloat16, targets.data_ptr<int64_t>(),
                             losses.data_ptr<float>(), logits.size(0), logits.size(1),
                             static_cast<float>(o.scale), o.gradients),
          "cross-entropy");
}

// sum += a x b, in fp32 from either type.
void AddProduct(at::Tensor sum, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    sum.addmm_(a, b);
    return;
  }
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
  if (a.is_cuda()) {
    sum.add_(at::mm(a, b, at::kFloat));
    return;
  }
#endif
  sum.add_(at::mm(a, b));
}

}  // namespace

double HeadResult::LossSum() const { return HostCopy(loss).Wait().item<double>(); }

std::function<absl::StatusOr<double>()> LateLoss(const at::Tensor& loss) {
  return [copy = std::make_shared<HostCopy>(loss)]() -> absl::StatusOr<double> {
    return Guarded("loss", [&]() -> absl::StatusOr<double> { return copy->Wait().item<double>(); });
  };
}

HeadResult HeadLoss(const at::Tensor& x, const at::Tensor& embedding, const at::Tensor& targets,
                    const HeadOptions& options, at::Tensor embedding_gradient) {
  const c10::AutoGradMode no_gradients(false);
  const int64_t rows = x.size(0), vocabulary = embedding.size(0);
  const int64_t row_bytes = vocabulary * static_cast<int64_t>(x.element_size());
  const int64_t most = std::max<int64_t>(1, options.logit_bytes / row_bytes);
  const at::Tensor losses = at::empty({rows}, x.options().dtype(at::kFloat));
  HeadResult result;
  if (options.gradients) result.gradient = at::empty_like(x);
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t n = std::min(most, rows - at);
    const at::Tensor in = x.narrow(0, at, n);
    const at::Tensor logits = at::mm(in, embedding.t());
    CrossEntropy(logits, targets.narrow(0, at, n), losses.narrow(0, at, n), options);
    if (at + n == rows) result.loss = losses.sum(at::kDouble);
    if (!options.gradients) continue;
    at::Tensor gradient = result.gradient.narrow(0, at, n);
    at::mm_out(gradient, logits, embedding);
    AddProduct(embedding_gradient, logits.t(), in);
  }
  return result;
}

}  // namespace isthmus::engine
