// A tensor on its way from a GPU to the host: the copy is queued behind what computes the tensor,
// into pinned memory, and waited for when it is needed. A tensor of the CPU is there at once.
// For worker/engine alone. Thread: a value; it may be waited for on another thread than it was
// made on.
#ifndef ISTHMUS_WORKER_ENGINE_HOST_COPY_H_
#define ISTHMUS_WORKER_ENGINE_HOST_COPY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace isthmus::engine {

class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& tensor);
  const at::Tensor& Wait();

 private:
  at::Tensor host_;
  std::optional<c10::Event> done_;  // none: it is there
};

// From and to a run of fp32 of any device, through pieces of pinned memory where it is a GPU's. To
// a GPU the copies are queued; `from` may go at once.
void CopyOut(const at::Tensor& from, float* to);
void CopyIn(const float* from, at::Tensor to);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_HOST_COPY_H_
