// DeviceLane: where the thread of an inlet or outlet works on a GPU. It has a stream of its own, so
// that a codec runs beside what the stage computes; tensors pass between the two streams by events,
// and neither thread waits for the other's device work. Only packed bytes then cross the bus.
// The engine implements it (worker/engine/device_lane.h); tests have one in host memory.
//
// Thread: New and Enter by the thread that makes the codec, then that of the inlet or outlet.
#ifndef ISTHMUS_WORKER_DEVICE_LANE_H_
#define ISTHMUS_WORKER_DEVICE_LANE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "worker/tensor.h"

namespace isthmus::worker {

class DeviceLane {
 public:
  virtual ~DeviceLane() = default;

  // For CodecOptions: the codec's tensors lie there, its work is queued on that stream.
  virtual compress::Device device() const = 0;
  virtual void* stream() const = 0;
  // The calling thread works on the lane's device from now on.
  virtual void Enter() = 0;

  // Memory for a codec to write on the lane.
  virtual absl::StatusOr<Tensor> New(const TensorDims& dims) = 0;
  // Who reads the tensor waits for what is queued on the lane so far.
  virtual absl::Status Written(Tensor* tensor) = 0;
  // What is queued on the lane from now on waits for what fills the tensor.
  virtual absl::Status Read(const Tensor& tensor) = 0;
  // *sum += x, each rounded to fp32 as a CPU does; Read of both and Written of *sum are part of it.
  virtual absl::Status Add(const Tensor& x, Tensor* sum) = 0;
};

// A new lane of the device of the session's stage; null: it computes on the CPU. A null factory
// says the same.
using LaneFactory = std::function<absl::StatusOr<std::unique_ptr<DeviceLane>>()>;

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_DEVICE_LANE_H_
