#include "worker/engine/host_copy.h"

#include <ATen/ops/empty.h>
#include <torch/version.h>

#include "worker/engine/device_tensor.h"

namespace isthmus::engine {

HostCopy::HostCopy(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) {
    host_ = tensor.contiguous();
    return;
  }
  host_ = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  done_.emplace(tensor.device().type());
  done_->record(CurrentStream(tensor.device()));
}

const at::Tensor& HostCopy::Wait() {
  if (done_.has_value()) {
#if TORCH_VERSION_MAJOR >= 2
    done_->synchronize();
#else
    while (!done_->query()) {
    }
#endif
    done_.reset();
  }
  return host_;
}

}  // namespace isthmus::engine
