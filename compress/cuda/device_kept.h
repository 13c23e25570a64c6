// kept as a codec on device memory; the values by any codec that has a kernel. The indices, 4 bytes
// each, come from the host with each frame and are checked there as the CPU's codec checks them.
// Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_KEPT_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_KEPT_H_

#include <memory>
#include <utility>

#include "compress/codecs/at_indices.h"
#include "compress/cuda/device_body.h"
#include "compress/cuda/kernels/at_indices.h"

namespace isthmus::compress::cuda {

class DeviceKept : public DeviceSampleCodec {
 public:
  // `values` codes what at.values() does on a host.
  DeviceKept(AtIndices at, std::unique_ptr<DeviceSampleCodec> values)
      : at_(std::move(at)), values_(std::move(values)) {
    Embed(*values_);  // a body is the values alone
  }
  absl::Status BeginFrame(const FrameContext& context, int64_t samples, Queue* queue) override;
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;

 private:
  int64_t kept() const { return static_cast<int64_t>(at_.kept()); }
  Selected SelectedOf(const SampleInfo& info) const {
    return {reinterpret_cast<const uint32_t*>(indices_.data()) + info.index * kept(), kept(),
            at_.shape().elements()};
  }
  float* list(size_t i) const {
    return reinterpret_cast<float*>(lists_.data()) + static_cast<int64_t>(i) * kept();
  }

  const AtIndices at_;
  const std::unique_ptr<DeviceSampleCodec> values_;
  PinnedMemory pinned_;   // the indices of a frame, on their way
  DeviceMemory indices_;  // of all samples of a frame
  DeviceMemory lists_;    // fp32 values of all samples of a call
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_KEPT_H_
