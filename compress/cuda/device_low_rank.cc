#include "compress/cuda/device_low_rank.h"

#include <utility>
#include <vector>

#include "base/status.h"

namespace isthmus::compress::cuda {

DeviceLowRank::DeviceLowRank(const SampleShape& shape, int64_t rank, uint64_t seed,
                             std::unique_ptr<DeviceSampleCodec> left,
                             std::unique_ptr<DeviceSampleCodec> right)
    : matrix_{shape.positions, shape.hidden},
      rank_(rank),
      left_(std::move(left)),
      right_(std::move(right)),
      kernels_(matrix_, rank, seed) {
  Embed(*left_);
  right_at_ = device_bytes_;
  Embed(*right_);
}

absl::Status DeviceLowRank::Reserve() {
  return scratch_.Reserve(4 * (matrix_.elements() + rank_ * (matrix_.positions + matrix_.hidden)));
}

absl::Status DeviceLowRank::Start(Queue* queue) {
  if (started_) return absl::OkStatus();
  RETURN_IF_ERROR(state_.Reserve(kernels_.StateBytes()));
  RETURN_IF_ERROR(queue->Zero(state_.data(), kernels_.StateBytes()));
  started_ = true;
  return absl::OkStatus();
}

// The host's warm start has rows where the device's has columns.
absl::Status DeviceLowRank::SaveState(StateWriter* to, Queue* queue) {
  const size_t rank = static_cast<size_t>(rank_), hidden = static_cast<size_t>(matrix_.hidden);
  std::vector<float> columns(rank * hidden), rows(rank * hidden);
  uint64_t draws = 0;
  if (started_) {
    RETURN_IF_ERROR(queue->ToHost(columns.data(), state_.data() + kernels_.WarmAt(),
                                  4 * rank_ * matrix_.hidden));
    RETURN_IF_ERROR(queue->ToHost(&draws, state_.data(), sizeof draws));
    RETURN_IF_ERROR(queue->Wait());
  }
  for (size_t k = 0; k < rank; ++k) {
    for (size_t h = 0; h < hidden; ++h) rows[h * rank + k] = columns[k * hidden + h];
  }
  to->Array(rows);
  to->Put(draws);
  return to->status();
}

absl::Status DeviceLowRank::LoadState(StateReader* from, Queue* queue) {
  const size_t rank = static_cast<size_t>(rank_), hidden = static_cast<size_t>(matrix_.hidden);
  std::vector<float> columns(rank * hidden), rows;
  from->Array(rank * hidden, "warm start of the low rank", &rows);
  const uint64_t draws = from->Get<uint64_t>("warm start of the low rank");
  RETURN_IF_ERROR(from->status());
  for (size_t k = 0; k < rank; ++k) {
    for (size_t h = 0; h < hidden; ++h) columns[k * hidden + h] = rows[h * rank + k];
  }
  RETURN_IF_ERROR(Start(queue));
  RETURN_IF_ERROR(queue->ToDevice(state_.data() + kernels_.WarmAt(), columns.data(),
                                  4 * rank_ * matrix_.hidden));
  RETURN_IF_ERROR(queue->ToDevice(state_.data(), &draws, sizeof draws));
  return queue->Wait();
}

absl::Status DeviceLowRank::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                   absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(Reserve());
  RETURN_IF_ERROR(Start(queue));
  for (size_t i = 0; i < jobs.size(); ++i) {  // in order: each starts from the one before
    EncodeJob job = jobs[i];
    const absl::Span<const SampleInfo> info = infos.subspan(i, 1);
    const float* t = static_cast<const float*>(job.a);
    if (dtype != DType::kF32) {
      RETURN_IF_ERROR(KernelStatus(PlainEncode(job.a, dtype, matrix_.elements(), DType::kF32,
                                               sample(), nullptr, nullptr, queue->stream()),
                                   "lowrank"));
      t = sample();
    }
    RETURN_IF_ERROR(KernelStatus(
        kernels_.Encode(t, state_.data(), left_factor(), right_factor(), queue->stream()),
        "lowrank"));
    job.a = left_factor();
    RETURN_IF_ERROR(left_->Encode(DType::kF32, {job}, info, queue));
    job.a = right_factor();
    job.body += right_at_;
    RETURN_IF_ERROR(right_->Encode(DType::kF32, {job}, info, queue));
  }
  return absl::OkStatus();
}

absl::Status DeviceLowRank::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                   absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                   Queue* queue) {
  RETURN_IF_ERROR(Reserve());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const DecodeJob& job = jobs[i];
    const absl::Span<const SampleInfo> info = infos.subspan(i, 1);
    RETURN_IF_ERROR(
        left_->Decode(DType::kF32, {{job.body, nullptr, left_factor()}}, info, nullptr, queue));
    RETURN_IF_ERROR(right_->Decode(DType::kF32, {{job.body + right_at_, nullptr, right_factor()}},
                                   info, nullptr, queue));
    float* out = dtype == DType::kF32 ? static_cast<float*>(job.out) : sample();
    RETURN_IF_ERROR(KernelStatus(
        kernels_.Decode(left_factor(), right_factor(), out, queue->stream()), "lowrank"));
    if (dtype == DType::kF32) continue;
    RETURN_IF_ERROR(KernelStatus(PlainEncode(out, DType::kF32, matrix_.elements(), dtype, job.out,
                                             nullptr, nullptr, queue->stream()),
                                 "lowrank"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::compress::cuda
