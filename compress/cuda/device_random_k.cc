#include "compress/cuda/device_random_k.h"

#include <utility>

#include "base/rng.h"
#include "base/status.h"

namespace isthmus::compress::cuda {

DeviceRandomK::DeviceRandomK(const Runs& runs, std::unique_ptr<DeviceSampleCodec> values)
    : runs_(runs), values_(std::move(values)) {
  Append(sizeof(uint32_t));  // the draw
  values_at_ = device_bytes_;
  Embed(*values_);
}

absl::Status DeviceRandomK::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                   absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  std::vector<EncodeJob> values(jobs.begin(), jobs.end());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const uint32_t draw = static_cast<uint32_t>(Mix64(infos[i].draw));
    RETURN_IF_ERROR(KernelStatus(
        RandomKEncode(runs_, draw, jobs[i].a, dtype, reinterpret_cast<uint32_t*>(jobs[i].body),
                      kept(i), queue->stream()),
        "randomk"));
    values[i].a = kept(i);
    values[i].body += values_at_;
  }
  return values_->Encode(DType::kF32, values, infos, queue);
}

absl::Status DeviceRandomK::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                   absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                   Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  std::vector<DecodeJob> values(jobs.begin(), jobs.end());
  for (size_t i = 0; i < jobs.size(); ++i) {
    values[i].body += values_at_;
    values[i].out = kept(i);
  }
  RETURN_IF_ERROR(values_->Decode(DType::kF32, values, infos, nullptr, queue));
  for (size_t i = 0; i < jobs.size(); ++i) {
    RETURN_IF_ERROR(
        KernelStatus(RandomKDecode(runs_, reinterpret_cast<const uint32_t*>(jobs[i].body), kept(i),
                                   dtype, jobs[i].out, queue->stream()),
                     "randomk"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::compress::cuda
