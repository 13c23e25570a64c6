// topk as a codec on device memory; the values by any codec that has a kernel.
// Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_TOP_K_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_TOP_K_H_

#include <memory>
#include <vector>

#include "compress/cuda/device_body.h"
#include "compress/cuda/kernels/top_k.h"

namespace isthmus::compress::cuda {

class DeviceTopK : public DeviceSampleCodec {
 public:
  // `values` codes positions x kept of each, or 1 x kept (`global`).
  DeviceTopK(const SampleShape& shape, int64_t kept, bool global,
             std::unique_ptr<DeviceSampleCodec> values);
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;

 private:
  absl::Status Select(DType dtype, absl::Span<const TopKJob> jobs, Queue* queue);

  const Matrix matrix_;
  const IndexFormat format_;
  const bool global_;
  const std::unique_ptr<DeviceSampleCodec> values_;
  int64_t values_at_;     // of a body
  DeviceMemory kept_;     // fp32 values of all samples of a call
  DeviceMemory indices_;  // of one sample
  DeviceMemory scratch_;  // of a selection from a sample
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_TOP_K_H_
