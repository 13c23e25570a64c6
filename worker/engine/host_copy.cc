#include "worker/engine/host_copy.h"

#include <ATen/ops/empty.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "worker/engine/device_tensor.h"

namespace isthmus::engine {
namespace {

constexpr int64_t kPiece = int64_t{1} << 22;  // elements

}  // namespace

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

// In pieces: while one is copied into pinned memory, the one before goes on to `to`.
void CopyOut(const at::Tensor& from, float* to) {
  std::optional<HostCopy> copy;
  for (int64_t at = 0, before = 0; at < from.numel() || copy.has_value(); at += kPiece) {
    std::optional<HostCopy> next;
    if (at < from.numel()) next.emplace(from.narrow(0, at, std::min(kPiece, from.numel() - at)));
    if (copy.has_value()) {
      const at::Tensor& piece = copy->Wait();
      std::memcpy(to + before, piece.data_ptr<float>(), piece.nbytes());
    }
    copy = std::move(next);
    before = at;
  }
}

void CopyIn(const float* from, at::Tensor to) {
  if (to.device().is_cpu()) {
    std::memcpy(to.data_ptr<float>(), from, to.nbytes());
    return;
  }
  for (int64_t at = 0; at < to.numel(); at += kPiece) {
    const int64_t n = std::min(kPiece, to.numel() - at);
    const at::Tensor piece =
        at::empty({n}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
    std::memcpy(piece.data_ptr<float>(), from + at, piece.nbytes());
    to.narrow(0, at, n).copy_(piece, /*non_blocking=*/true);
  }
}

}  // namespace isthmus::engine
