// randomk as a codec on device memory; the values by any codec that has a kernel. Thread: one
// owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_RANDOM_K_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_RANDOM_K_H_

#include <memory>

#include "compress/cuda/device_body.h"
#include "compress/cuda/kernels/random_k.h"

namespace isthmus::compress::cuda {

class DeviceRandomK : public DeviceSampleCodec {
 public:
  // `values` codes 1 x kept.
  DeviceRandomK(const Runs& runs, std::unique_ptr<DeviceSampleCodec> values);
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;

 private:
  absl::Status Reserve(size_t samples) {
    return kept_.Reserve(4 * runs_.kept * static_cast<int64_t>(samples));
  }
  float* kept(size_t i) const {
    return reinterpret_cast<float*>(kept_.data()) + static_cast<int64_t>(i) * runs_.kept;
  }

  const Runs runs_;
  const std::unique_ptr<DeviceSampleCodec> values_;
  int64_t values_at_;  // of a body
  DeviceMemory kept_;  // fp32 values of all samples of a call
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_RANDOM_K_H_
