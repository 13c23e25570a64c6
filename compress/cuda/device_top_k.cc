#include "compress/cuda/device_top_k.h"

#include <utility>

#include "base/status.h"

namespace isthmus::compress::cuda {

DeviceTopK::DeviceTopK(const SampleShape& shape, int64_t kept, bool global,
                       std::unique_ptr<DeviceSampleCodec> values)
    : matrix_{shape.positions, shape.hidden},
      format_(IndexFormatOf(shape.elements(), kept)),
      global_(global),
      values_(std::move(values)) {
  Append(format_.first_bytes);
  if (format_.second_bytes > 0) Append(format_.second_bytes);
  values_at_ = device_bytes_;
  Embed(*values_);
}

absl::Status DeviceTopK::Select(DType dtype, absl::Span<const TopKJob> jobs, Queue* queue) {
  if (!global_) {
    const int64_t kept_of_row = matrix_.positions > 0 ? format_.kept / matrix_.positions : 0;
    return KernelStatus(TopKEncode(matrix_, kept_of_row, dtype, jobs.data(),
                                   static_cast<int64_t>(jobs.size()), queue->stream()),
                        "topk");
  }
  RETURN_IF_ERROR(scratch_.Reserve(GlobalScratchBytes(format_.n)));
  for (const TopKJob& job : jobs) {
    RETURN_IF_ERROR(KernelStatus(
        TopKEncodeGlobal(format_, dtype, job, scratch_.data(), queue->stream()), "topk"));
  }
  return absl::OkStatus();
}

absl::Status DeviceTopK::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(kept_.Reserve(4 * format_.kept * static_cast<int64_t>(jobs.size())));
  std::vector<TopKJob> selects;
  std::vector<EncodeJob> values(jobs.begin(), jobs.end());
  float* kept = reinterpret_cast<float*>(kept_.data());
  for (EncodeJob& job : values) {
    selects.push_back({job.a, job.body, kept});
    RETURN_IF_ERROR(queue->Zero(job.body, values_at_));
    job.a = kept;
    job.body += values_at_;
    kept += format_.kept;
  }
  RETURN_IF_ERROR(Select(dtype, selects, queue));
  return values_->Encode(DType::kF32, values, infos, queue);
}

absl::Status DeviceTopK::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                Queue* queue) {
  RETURN_IF_ERROR(kept_.Reserve(4 * format_.kept * static_cast<int64_t>(jobs.size())));
  RETURN_IF_ERROR(indices_.Reserve(4 * format_.kept));
  std::vector<DecodeJob> values(jobs.begin(), jobs.end());
  float* kept = reinterpret_cast<float*>(kept_.data());
  for (size_t i = 0; i < jobs.size(); ++i) {
    values[i].body += values_at_;
    values[i].out = kept + static_cast<int64_t>(i) * format_.kept;
  }
  RETURN_IF_ERROR(values_->Decode(DType::kF32, values, infos, nullptr, queue));
  for (size_t i = 0; i < jobs.size(); ++i) {
    RETURN_IF_ERROR(
        KernelStatus(TopKDecode(format_, jobs[i].body, static_cast<const float*>(values[i].out),
                                reinterpret_cast<uint32_t*>(indices_.data()), dtype, jobs[i].out,
                                queue->stream()),
                     "topk"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::compress::cuda
