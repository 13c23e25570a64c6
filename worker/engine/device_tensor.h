// DeviceTensor: a tensor of LibTorch as the device memory of a worker::Tensor, with the event that
// says when it is there. For worker/engine alone. Thread: as worker::Tensor.
#ifndef ISTHMUS_WORKER_ENGINE_DEVICE_TENSOR_H_
#define ISTHMUS_WORKER_ENGINE_DEVICE_TENSOR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "worker/engine/cuda/kernels.h"
#include "worker/tensor.h"

namespace isthmus::engine {

// The stream that the calling thread queues on. GPUs alone.
c10::Stream CurrentStream(c10::Device device);
// The same for the engine's own kernels.
Queue QueueOf(c10::Device device);
// From now on the calling thread queues on a stream of its own, if it did on the default one: only
// what is queued on such a stream can be recorded (device_graph.h). Nothing for a CPU.
void UseOwnStream(c10::Device device);

class DeviceTensor : public worker::DeviceMemory {
 public:
  // fp32, contiguous.
  explicit DeviceTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}

  void* data() override { return tensor_.data_ptr(); }
  absl::StatusOr<std::vector<float>> ToHost() override;

  // What fills it is queued on `stream`.
  void FilledOn(c10::Stream stream);
  // The tensor, for use on `stream`: what is queued there from now on waits for it, and its memory
  // is given back after that.
  at::Tensor UseOn(c10::Stream stream);
  // The same on the calling thread's stream.
  at::Tensor Use();

 private:
  at::Tensor tensor_;
  std::optional<c10::Event> filled_;  // none: it is there
};

// On `device`, for the calling thread's stream. Takes a vector over: no copy on the CPU.
at::Tensor FromWorker(worker::Tensor tensor, c10::Device device);

// In fp32, in a vector, or in its own memory (`stays`), for which nobody waits.
worker::Tensor ToWorker(const at::Tensor& tensor, const TensorDims& dims, bool stays);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_DEVICE_TENSOR_H_
