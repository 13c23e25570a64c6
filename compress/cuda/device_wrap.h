// Codecs on device memory around any other: error feedback, delta coding, key frames. What the
// receiver will have is found by decoding the body that was just made. Samples are worked on a few
// at a time, so that scratch memory stays small. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_WRAP_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_WRAP_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "compress/codecs/feedback.h"
#include "compress/cuda/device_body.h"

namespace isthmus::compress::cuda {

// One codec within another, and fp32 scratch for a few samples: `tensor` and `back`.
class DeviceWrapper : public DeviceSampleCodec {
 public:
  // `before`: bytes of a body that come before the inner codec's.
  DeviceWrapper(const SampleShape& shape, std::unique_ptr<DeviceSampleCodec> inner,
                int64_t before = 0)
      : elements_(shape.elements()), inner_(std::move(inner)) {
    if (before > 0) Append(before);
    inner_at_ = device_bytes_;
    Embed(*inner_);
  }
  absl::Status SaveState(StateWriter* to, Queue* queue) override {
    return inner_->SaveState(to, queue);
  }
  absl::Status LoadState(StateReader* from, Queue* queue) override {
    return inner_->LoadState(from, queue);
  }

 protected:
  static constexpr size_t kAtOnce = 8;  // samples

  absl::Status Reserve(size_t samples);
  float* tensor(size_t i) const { return At(i); }
  float* back(size_t i) const { return At(kAtOnce + i); }
  // tensor(i) -> inner codec's part of jobs[i].body -> back(i).
  absl::Status Code(absl::Span<const EncodeJob> jobs, absl::Span<const SampleInfo> infos,
                    Queue* queue);
  // Inner codec's part of jobs[i].body -> back(i).
  absl::Status DecodeBack(absl::Span<const DecodeJob> jobs, absl::Span<const SampleInfo> infos,
                          Queue* queue);
  // Of [0, n): f(first, count) -> Status.
  template <typename F>
  static absl::Status ForRuns(size_t n, F f) {
    absl::Status status;
    for (size_t first = 0; status.ok() && first < n; first += kAtOnce)
      status = f(first, n - first < kAtOnce ? n - first : kAtOnce);
    return status;
  }

  const int64_t elements_;
  const std::unique_ptr<DeviceSampleCodec> inner_;
  int64_t inner_at_;  // of a body

 private:
  float* At(size_t i) const {
    return reinterpret_cast<float*>(scratch_.data()) + static_cast<int64_t>(i) * elements_;
  }
  DeviceMemory scratch_;
};

// ef and lep: compress/codecs/feedback.h. Residuals, fp32 in device memory, are the encoder's own.
class DeviceFeedback : public DeviceWrapper {
 public:
  DeviceFeedback(bool lazy, const SampleShape& shape, std::unique_ptr<DeviceSampleCodec> inner)
      : DeviceWrapper(shape, std::move(inner)), lazy_(lazy) {}
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;
  absl::Status SaveState(StateWriter* to, Queue* queue) override;
  absl::Status LoadState(StateReader* from, Queue* queue) override;

 private:
  absl::StatusOr<float*> ResidualAt(const ResidualPlace& place, Queue* queue);

  const bool lazy_;
  std::map<ResidualPlace, DeviceMemory> residuals_;
};

// Role::kDelta around a codec of Role::kDirect.
class DeviceDifference : public DeviceWrapper {
 public:
  using DeviceWrapper::DeviceWrapper;
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;
};

// Role::kKey around a codec of Role::kDirect.
class DeviceKey : public DeviceWrapper {
 public:
  using DeviceWrapper::DeviceWrapper;
  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;

 private:
  // m := bf16(back).
  absl::Status Keep(size_t i, uint16_t* m, uint32_t* not_finite, Queue* queue);
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_WRAP_H_
