#include "compress/cuda/device_wrap.h"

#include <algorithm>

#include "base/status.h"
#include "compress/cuda/kernels/elementwise.h"

namespace isthmus::compress::cuda {

absl::Status DeviceWrapper::Reserve(size_t samples) {
  const size_t rows = samples == 0 ? 0 : kAtOnce + std::min(samples, kAtOnce);
  return scratch_.Reserve(4 * elements_ * static_cast<int64_t>(rows));
}

absl::Status DeviceWrapper::Code(absl::Span<const EncodeJob> jobs,
                                 absl::Span<const SampleInfo> infos, Queue* queue) {
  std::vector<EncodeJob> coded(jobs.begin(), jobs.end());
  std::vector<DecodeJob> bodies;
  for (size_t i = 0; i < coded.size(); ++i) {
    coded[i].a = tensor(i);
    coded[i].m = nullptr;
    coded[i].body += inner_at_;
    bodies.push_back({jobs[i].body, nullptr, nullptr});
  }
  RETURN_IF_ERROR(inner_->Encode(DType::kF32, coded, infos, queue));
  return DecodeBack(bodies, infos, queue);
}

absl::Status DeviceWrapper::DecodeBack(absl::Span<const DecodeJob> jobs,
                                       absl::Span<const SampleInfo> infos, Queue* queue) {
  std::vector<DecodeJob> decoded;
  for (const DecodeJob& job : jobs)
    decoded.push_back({job.body + inner_at_, nullptr, back(decoded.size())});
  return inner_->Decode(DType::kF32, decoded, infos, nullptr, queue);
}

absl::StatusOr<float*> DeviceFeedback::ResidualAt(const ResidualPlace& place, Queue* queue) {
  const auto [found, is_new] = residuals_.try_emplace(place);
  if (is_new) {
    absl::Status status =
        Annotate(found->second.Reserve(4 * elements_), "residual of error feedback");
    if (status.ok()) status = queue->Zero(found->second.data(), 4 * elements_);
    if (!status.ok()) residuals_.erase(found);
    RETURN_IF_ERROR(status);
  }
  return reinterpret_cast<float*>(found->second.data());
}

absl::Status DeviceFeedback::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                    absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    std::vector<float*> residuals;
    for (size_t i = 0; i < count; ++i) {
      const SampleInfo& info = infos[first + i];
      ASSIGN_OR_RETURN(float* e, ResidualAt({lazy_ ? 0 : info.micro, info.index}, queue));
      residuals.push_back(e);
      RETURN_IF_ERROR(KernelStatus(
          AddResidual(jobs[first + i].a, dtype, e, elements_, tensor(i), queue->stream()),
          "error feedback"));
    }
    RETURN_IF_ERROR(Code(jobs.subspan(first, count), infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i) {
      RETURN_IF_ERROR(
          KernelStatus(KeepResidual(tensor(i), back(i), elements_, residuals[i], queue->stream()),
                       "error feedback"));
    }
    return absl::OkStatus();
  });
}

absl::Status DeviceFeedback::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                    absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                    Queue* queue) {
  return inner_->Decode(dtype, jobs, infos, not_finite, queue);
}

absl::Status DeviceFeedback::SaveState(StateWriter* to, Queue* queue) {
  std::vector<float> e(static_cast<size_t>(elements_));
  to->Put<uint64_t>(residuals_.size());
  for (const auto& [place, residual] : residuals_) {
    RETURN_IF_ERROR(queue->ToHost(e.data(), residual.data(), 4 * elements_));
    RETURN_IF_ERROR(queue->Wait());
    to->Put(place.first);
    to->Put(place.second);
    to->Array(e);
  }
  return inner_->SaveState(to, queue);
}

absl::Status DeviceFeedback::LoadState(StateReader* from, Queue* queue) {
  std::vector<float> e;
  ResidualPlace place{-1, -1};
  const uint64_t count = from->Get<uint64_t>("residuals");
  for (uint64_t i = 0; i < count && from->ok(); ++i) {
    place = LoadResidualPlace(from, lazy_, place);
    from->Array(static_cast<size_t>(elements_), "residuals", &e);
    if (!from->ok()) break;
    ASSIGN_OR_RETURN(float* to, ResidualAt(place, queue));
    RETURN_IF_ERROR(queue->ToDevice(to, e.data(), 4 * elements_));
    RETURN_IF_ERROR(queue->Wait());
  }
  return inner_->LoadState(from, queue);
}

absl::Status DeviceDifference::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                      absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    for (size_t i = 0; i < count; ++i) {
      const EncodeJob& job = jobs[first + i];
      RETURN_IF_ERROR(KernelStatus(
          SubtractBuffer(job.a, dtype, job.m, elements_, tensor(i), queue->stream()), "delta"));
    }
    RETURN_IF_ERROR(Code(jobs.subspan(first, count), infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i) {
      const EncodeJob& job = jobs[first + i];
      RETURN_IF_ERROR(KernelStatus(AddToBuffer(back(i), elements_, job.m, DType::kF32, nullptr,
                                               job.not_finite, queue->stream()),
                                   "delta"));
    }
    return absl::OkStatus();
  });
}

absl::Status DeviceDifference::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                      Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    RETURN_IF_ERROR(DecodeBack(jobs.subspan(first, count), infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i) {
      const DecodeJob& job = jobs[first + i];
      RETURN_IF_ERROR(KernelStatus(
          AddToBuffer(back(i), elements_, job.m, dtype, job.out, not_finite, queue->stream()),
          "delta"));
    }
    return absl::OkStatus();
  });
}

absl::Status DeviceKey::Keep(size_t i, uint16_t* m, uint32_t* not_finite, Queue* queue) {
  return KernelStatus(PlainEncode(back(i), DType::kF32, elements_, DType::kF32, nullptr, m,
                                  not_finite, queue->stream()),
                      "key frame");
}

absl::Status DeviceKey::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                               absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    std::vector<DecodeJob> bodies;
    std::vector<EncodeJob> coded;
    for (const EncodeJob& job : jobs.subspan(first, count)) {
      bodies.push_back({job.body, nullptr, nullptr});
      coded.push_back(job);
      coded.back().m = nullptr;
    }
    RETURN_IF_ERROR(inner_->Encode(dtype, coded, infos.subspan(first, count), queue));
    RETURN_IF_ERROR(DecodeBack(bodies, infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i)
      RETURN_IF_ERROR(Keep(i, jobs[first + i].m, jobs[first + i].not_finite, queue));
    return absl::OkStatus();
  });
}

absl::Status DeviceKey::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                               absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                               Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    RETURN_IF_ERROR(DecodeBack(jobs.subspan(first, count), infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i) {
      const DecodeJob& job = jobs[first + i];
      RETURN_IF_ERROR(KernelStatus(PlainEncode(back(i), DType::kF32, elements_, dtype, job.out,
                                               nullptr, nullptr, queue->stream()),
                                   "key frame"));
      RETURN_IF_ERROR(Keep(i, job.m, not_finite, queue));
    }
    return absl::OkStatus();
  });
}

}  // namespace isthmus::compress::cuda
