#include "compress/cuda/device_kept.h"

#include <cstring>
#include <vector>

#include "base/status.h"

namespace isthmus::compress::cuda {

absl::Status DeviceKept::BeginFrame(const FrameContext& context, int64_t samples, Queue* queue) {
  RETURN_IF_ERROR(at_.CheckIndices(context.indices, samples));
  const size_t bytes = 4 * context.indices.size();
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(queue->WaitForMark());  // a decoder's last copy may not have been made yet
  RETURN_IF_ERROR(pinned_.Reserve(static_cast<int64_t>(bytes)));
  RETURN_IF_ERROR(indices_.Reserve(static_cast<int64_t>(bytes)));
  std::memcpy(pinned_.data(), context.indices.data(), bytes);
  return queue->ToDevice(indices_.data(), pinned_.data(), static_cast<int64_t>(bytes));
}

absl::Status DeviceKept::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(lists_.Reserve(4 * kept() * static_cast<int64_t>(jobs.size())));
  std::vector<EncodeJob> values(jobs.begin(), jobs.end());
  for (size_t i = 0; i < jobs.size(); ++i) {
    RETURN_IF_ERROR(KernelStatus(
        GatherAt(SelectedOf(infos[i]), jobs[i].a, dtype, list(i), queue->stream()), "kept"));
    values[i].a = list(i);
  }
  return values_->Encode(DType::kF32, values, infos, queue);
}

absl::Status DeviceKept::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                Queue* queue) {
  RETURN_IF_ERROR(lists_.Reserve(4 * kept() * static_cast<int64_t>(jobs.size())));
  std::vector<DecodeJob> values(jobs.begin(), jobs.end());
  for (size_t i = 0; i < jobs.size(); ++i) values[i].out = list(i);
  RETURN_IF_ERROR(values_->Decode(DType::kF32, values, infos, nullptr, queue));
  for (size_t i = 0; i < jobs.size(); ++i) {
    RETURN_IF_ERROR(KernelStatus(
        ScatterAt(SelectedOf(infos[i]), list(i), at_.scaled(), dtype, jobs[i].out, queue->stream()),
        "kept"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::compress::cuda
