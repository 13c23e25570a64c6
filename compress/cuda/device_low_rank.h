// lowrank as a codec on device memory; the factors by any codec that has a kernel. The warm start
// is the encoder's own. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_LOW_RANK_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_LOW_RANK_H_

#include <memory>

#include "compress/cuda/device_body.h"
#include "compress/cuda/kernels/low_rank.h"

namespace isthmus::compress::cuda {

class DeviceLowRank : public DeviceSampleCodec {
 public:
  // `left` codes positions x rank, `right` rank x hidden.
  DeviceLowRank(const SampleShape& shape, int64_t rank, uint64_t seed,
                std::unique_ptr<DeviceSampleCodec> left, std::unique_ptr<DeviceSampleCodec> right);
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;
  absl::Status SaveState(StateWriter* to, Queue* queue) override;
  absl::Status LoadState(StateReader* from, Queue* queue) override;

 private:
  absl::Status Start(Queue* queue);
  absl::Status Reserve();
  float* left_factor() const { return sample() + matrix_.elements(); }
  float* right_factor() const { return left_factor() + matrix_.positions * rank_; }
  float* sample() const { return reinterpret_cast<float*>(scratch_.data()); }

  const Matrix matrix_;
  const int64_t rank_;
  const std::unique_ptr<DeviceSampleCodec> left_, right_;
  int64_t right_at_;  // of a body
  LowRank kernels_;
  DeviceMemory state_;
  DeviceMemory scratch_;  // a sample and its factors in fp32
  bool started_ = false;
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_LOW_RANK_H_
