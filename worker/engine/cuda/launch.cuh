// What the kernels share: the device of a call, and the last error in words.
#ifndef ISTHMUS_WORKER_ENGINE_CUDA_LAUNCH_CUH_
#define ISTHMUS_WORKER_ENGINE_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include "worker/engine/cuda/kernels.h"

namespace isthmus::engine {

// The device is the thread's current one while this lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

inline cudaStream_t StreamOf(const Queue& on) { return static_cast<cudaStream_t>(on.stream); }

inline const char* LastError() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_CUDA_LAUNCH_CUH_
