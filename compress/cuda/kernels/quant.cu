// Chooses the kernels of a call, and cuts it into launches.
#include <cuda_runtime.h>

#include <algorithm>

#include "compress/cuda/kernels/quant_paths.cuh"
#include "compress/simd/pack.h"

namespace isthmus::compress::cuda {
namespace {

bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

int64_t GroupsOfRow(const QuantFormat& format, const Matrix& matrix) {
  if (format.scale_by != ScaleBy::kGroup) return 1;
  return (matrix.hidden + format.group - 1) / format.group;
}

template <typename Job>
Launch<Job> MakeLaunch(const QuantFormat& format, const Matrix& matrix) {
  Launch<Job> launch = {};
  const BodyLayout layout = LayoutOf(format, matrix);
  launch.levels = Levels(format.bits, format.symmetric);
  launch.positions = matrix.positions;
  launch.hidden = matrix.hidden;
  launch.scales = layout.scales;
  launch.codes_at = layout.codes_at;
  launch.group_vectors =
      format.scale_by == ScaleBy::kGroup ? static_cast<int>(format.group / 8) : 0;
  launch.groups_of_row = static_cast<int>(GroupsOfRow(format, matrix));
  launch.step_factor = 1.0f / launch.levels.top;
  return launch;
}

Error CheckFormat(const QuantFormat& format, const Matrix& matrix) {
  if (format.bits < 1 || format.bits > 8) return "quant: bits are 1 to 8";
  if (matrix.positions < 0 || matrix.hidden < 0) return "quant: a negative shape";
  if (format.scale_by == ScaleBy::kGroup && format.group < 1) return "quant: a group of nothing";
  return nullptr;
}

}  // namespace

Error LastError() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

BodyLayout LayoutOf(const QuantFormat& format, const Matrix& matrix) {
  BodyLayout layout;
  layout.scales = format.scale_by == ScaleBy::kChannel
                      ? matrix.hidden
                      : matrix.positions * GroupsOfRow(format, matrix);
  layout.codes_at = (2 * layout.scales + 15) / 16 * 16;
  layout.code_bytes =
      static_cast<int64_t>(PackedBytes(static_cast<size_t>(matrix.elements()), format.bits));
  layout.bytes = (layout.codes_at + layout.code_bytes + 15) / 16 * 16;
  return layout;
}

bool EncodesInOnePass(const QuantFormat& format, const Matrix& matrix, DType dtype) {
  if (format.rule != ScaleRule::kMax || format.stochastic) return false;
  return format.scale_by == ScaleBy::kChannel ? ChannelFits(matrix)
                                              : RowFits(format, matrix, dtype);
}

int64_t EncodeScratchBytes(const QuantFormat& format, const Matrix& matrix, int64_t count) {
  return 8 * LayoutOf(format, matrix).scales * std::min<int64_t>(count, kMaxJobs);
}

Error QuantEncode(const QuantFormat& format, const Matrix& matrix, DType dtype,
                  const EncodeJob* jobs, int64_t count, void* scratch, Stream stream) {
  if (Error error = CheckFormat(format, matrix)) return error;
  Launch<EncodeJob> launch = MakeLaunch<EncodeJob>(format, matrix);
  const bool one_pass = EncodesInOnePass(format, matrix, dtype);
  for (int64_t start = 0; start < count; start += kMaxJobs) {
    const int n = static_cast<int>(std::min<int64_t>(count - start, kMaxJobs));
    std::copy_n(jobs + start, n, launch.jobs);
    const bool aligned = std::all_of(launch.jobs, launch.jobs + n, [](const EncodeJob& job) {
      return Aligned(job.a) && Aligned(job.m) && Aligned(job.body);
    });
    const bool delta = launch.jobs[0].m != nullptr;
    Error error = nullptr;
    if (!one_pass || !aligned) {
      if (scratch == nullptr && launch.scales > 0) return "quant: this call needs scratch memory";
      error = EncodeAny(format, launch, dtype, n, scratch, stream);
    } else if (format.scale_by == ScaleBy::kChannel) {
      error = EncodeChannels(launch, dtype, delta, n, stream);
    } else {
      error = EncodeRows(launch, dtype, delta, n, stream);
    }
    if (error != nullptr) return error;
  }
  return nullptr;
}

Error QuantDecode(const QuantFormat& format, const Matrix& matrix, DType dtype,
                  const DecodeJob* jobs, int64_t count, Stream stream) {
  if (Error error = CheckFormat(format, matrix)) return error;
  Launch<DecodeJob> launch = MakeLaunch<DecodeJob>(format, matrix);
  const bool fits = DecodeFits(format, matrix);
  for (int64_t start = 0; start < count; start += kMaxJobs) {
    const int n = static_cast<int>(std::min<int64_t>(count - start, kMaxJobs));
    std::copy_n(jobs + start, n, launch.jobs);
    const bool aligned = std::all_of(launch.jobs, launch.jobs + n, [](const DecodeJob& job) {
      return Aligned(job.body) && Aligned(job.m) && Aligned(job.out);
    });
    const bool delta = launch.jobs[0].m != nullptr;
    const Error error =
        fits && aligned
            ? DecodeRuns(launch, dtype, format.scale_by == ScaleBy::kChannel, delta, n, stream)
            : DecodeAny(format, launch, dtype, n, stream);
    if (error != nullptr) return error;
  }
  return nullptr;
}

int64_t EncodeBytesMoved(const QuantFormat& format, const Matrix& matrix, DType dtype, bool delta) {
  const int64_t of_element = static_cast<int64_t>(DTypeBytes(dtype)) + (delta ? 4 : 0);
  return matrix.elements() * of_element + LayoutOf(format, matrix).wire_bytes();
}

int64_t DecodeBytesMoved(const QuantFormat& format, const Matrix& matrix, DType dtype, bool delta) {
  return EncodeBytesMoved(format, matrix, dtype, delta);
}

}  // namespace isthmus::compress::cuda
