// quant and delta(quant) back to elements, in one pass: unpack, multiply, add the buffer, write the
// buffer and the result. A thread takes eight neighbouring channels of some positions.
#include <cuda_runtime.h>

#include "compress/cuda/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kVectors = 8;  // of eight channels, of a strip of 64: the columns of a block
constexpr int kLines = 32;   // positions that a block takes at once
constexpr int RowsOf(bool delta) { return delta ? 4 : 8; }  // times

// Grid: runs of positions x strips x samples.
template <DType kType, bool kDelta, bool kByChannel, int kBits>
__global__ void __launch_bounds__(kVectors* kLines)
    DecodeKernel(const __grid_constant__ Launch<DecodeJob> launch) {
  constexpr int kRows = RowsOf(kDelta);
  const DecodeJob& job = launch.jobs[blockIdx.z];
  const Levels& levels = launch.levels;
  const int column = static_cast<int>(blockIdx.y * kVectors + threadIdx.x % kVectors);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLines * kRows + threadIdx.x / kVectors;
  const int64_t place = first * (launch.hidden / 8) + column, pitch = kLines * (launch.hidden / 8);
  const int64_t rows = launch.positions - first;  // below the first
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(job.body);
  uint32_t high[kRows], low[kRows];
  uint16_t scale[kRows];
  Vector<DType::kBf16> m[kDelta ? kRows : 1];
  if constexpr (!kByChannel)
    scales += first * launch.groups_of_row +
              (launch.group_vectors == 0 ? 0 : column / launch.group_vectors);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r * kLines >= rows) continue;
    LoadField<kBits>(job.body + launch.codes_at, place + r * pitch, &high[r], &low[r]);
    if constexpr (kDelta) m[r].Load(job.m, place + r * pitch);
    if constexpr (!kByChannel)
      scale[r] = __ldg(scales + r * kLines * static_cast<int64_t>(launch.groups_of_row));
  }
  float step[8];
  uint32_t nan = 0;
  if constexpr (kByChannel) {
    const uint4 packed = __ldg(reinterpret_cast<const uint4*>(scales) + column);
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint16_t s = static_cast<uint16_t>(i % 2 == 0 ? pairs[i / 2] : pairs[i / 2] >> 16);
      step[i] = DeviceStep(levels, launch.step_factor, s);
      if (s == kScaleNan) nan |= 1u << i;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r * kLines >= rows) break;
    if constexpr (!kByChannel) {
      step[0] = DeviceStep(levels, launch.step_factor, scale[r]);
      nan = scale[r] == kScaleNan ? 0xffu : 0u;
#pragma unroll
      for (int i = 1; i < 8; ++i) step[i] = step[0];
    }
    Vector<kType> out;
    DequantizeVector<kBits, kDelta>(levels, high[r], low[r], step, nan, &m[kDelta ? r : 0], &out);
    if constexpr (kDelta) m[r].Store(job.m, place + r * pitch);
    out.Store(job.out, place + r * pitch);
  }
}

template <DType kType, bool kDelta>
Error Run(const Launch<DecodeJob>& launch, bool by_channel, int count, Stream stream) {
  constexpr int kBlockRows = kLines * RowsOf(kDelta);
  const dim3 grid(static_cast<unsigned>((launch.positions + kBlockRows - 1) / kBlockRows),
                  static_cast<unsigned>(launch.hidden / (8 * kVectors)),
                  static_cast<unsigned>(count));
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  return ForBits(launch.levels.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    if (by_channel) {
      DecodeKernel<kType, kDelta, true, kBits><<<grid, kVectors * kLines, 0, s>>>(launch);
    } else {
      DecodeKernel<kType, kDelta, false, kBits><<<grid, kVectors * kLines, 0, s>>>(launch);
    }
    return LastError();
  });
}

template <DType kType>
Error Run(const Launch<DecodeJob>& launch, bool by_channel, bool delta, int count, Stream stream) {
  return delta ? Run<kType, true>(launch, by_channel, count, stream)
               : Run<kType, false>(launch, by_channel, count, stream);
}

}  // namespace

bool DecodeFits(const QuantFormat& format, const Matrix& matrix) {
  if (matrix.hidden == 0 || matrix.hidden % 64 != 0 || matrix.positions == 0 ||
      matrix.hidden / 64 > 65535 || matrix.positions > 0x7fffffff)
    return false;
  return format.scale_by != ScaleBy::kGroup || format.group % 8 == 0;
}

Error DecodeStrips(const Launch<DecodeJob>& launch, DType dtype, bool by_channel, bool delta,
                   int count, Stream stream) {
  switch (dtype) {
    case DType::kF32:
      return Run<DType::kF32>(launch, by_channel, delta, count, stream);
    case DType::kF16:
      return Run<DType::kF16>(launch, by_channel, delta, count, stream);
    default:
      return Run<DType::kBf16>(launch, by_channel, delta, count, stream);
  }
}

}  // namespace isthmus::compress::cuda
