// A tensor at the edge of a stage: fp32, row-major samples x positions x hidden, owned and moved.
// It lies in host memory, or, between a stage on a GPU and the codecs of its links, in the device's
// (device_lane.h). Thread: a value; one owner at a time.
#ifndef ISTHMUS_WORKER_TENSOR_H_
#define ISTHMUS_WORKER_TENSOR_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/codec/codec_size.h"

namespace isthmus::worker {

// Memory of a device. What was queued to fill it may still be under way: a DeviceLane and the stage
// know how to wait.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* data() = 0;
  // A copy; waits for what fills the memory.
  virtual absl::StatusOr<std::vector<float>> ToHost() = 0;
};

struct Tensor {
  TensorDims dims;
  std::vector<float> data;  // dims.elements() long; empty where `device` has them
  // Null: none. Shared: the allocator behind it ends its life, when a stage's graph and queue do.
  std::shared_ptr<DeviceMemory> device;

  static Tensor Zeros(TensorDims dims) {
    return Tensor{dims, std::vector<float>(dims.elements()), nullptr};
  }
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_TENSOR_H_
