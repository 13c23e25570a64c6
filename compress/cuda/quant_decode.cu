// quant and delta(quant) back to elements, in one pass: unpack, multiply, add the buffer, write the
// buffer and the result. A thread takes eight neighbouring channels of some positions.
#include <cuda_runtime.h>

#include "compress/cuda/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kVectors = 8;  // of eight channels, of a strip of 64: the columns of a block
constexpr int kLines = 32;   // positions that a block takes at once
constexpr int RowsOf(bool delta) { return delta ? 4 : 8; }  // times

// The steps of a thread's eight channels; returns a bit for each that is NaN.
__device__ uint32_t FindSteps(const Launch<DecodeJob>& launch, const DecodeJob& job, float* step) {
  const uint32_t vector = blockIdx.y * kVectors + threadIdx.x % kVectors;
  const uint4 packed = __ldg(reinterpret_cast<const uint4*>(job.body) + vector);
  const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  uint32_t nan = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t scale = i % 2 == 0 ? pairs[i / 2] & 0xffffu : pairs[i / 2] >> 16;
    step[i] = StepOf(launch.levels, launch.step_factor, scale);
    if (scale == kScaleNan) nan |= 1u << i;
  }
  return nan;
}

// Grid: runs of positions x strips x samples.
template <DType kType, bool kDelta, bool kByChannel, int kBits>
__global__ void __launch_bounds__(kVectors* kLines)
    DecodeKernel(const __grid_constant__ Launch<DecodeJob> launch) {
  constexpr int kRows = RowsOf(kDelta);
  const DecodeJob& job = launch.jobs[blockIdx.z];
  const uint32_t column = blockIdx.y * kVectors + threadIdx.x % kVectors;
  const uint32_t first = blockIdx.x * kLines * kRows + threadIdx.x / kVectors;
  const uint32_t row_vectors = static_cast<uint32_t>(launch.hidden / 8);
  const uint32_t place = first * row_vectors + column, pitch = kLines * row_vectors;
  const int rows = static_cast<int>(launch.positions) - static_cast<int>(first);  // from there on
  const uint8_t* codes = job.body + launch.codes_at;
  const uint32_t skip = place * kBits % 4;  // of every row: a row has a multiple of 8 bytes
  PackedField<kBits> field[kRows];
  uint16_t scale[kRows];
  Vector<DType::kBf16> m[kDelta ? kRows : 1];
  const uint32_t row_scales = static_cast<uint32_t>(launch.groups_of_row);
  uint32_t at_scale = 0;
  if constexpr (!kByChannel) {
    at_scale = first * row_scales;
    if (launch.group_vectors != 0) at_scale += column / static_cast<uint32_t>(launch.group_vectors);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r * kLines >= rows) continue;
    field[r].Load(codes, (place + r * pitch) * kBits, skip);
    if constexpr (kDelta) m[r].Load(reinterpret_cast<uint8_t*>(job.m) + (place + r * pitch) * 16);
    if constexpr (!kByChannel)
      scale[r] =
          __ldg(reinterpret_cast<const uint16_t*>(job.body) + at_scale + r * kLines * row_scales);
  }
  float step[8];
  uint32_t nan = 0;
  if constexpr (kByChannel) nan = FindSteps(launch, job, step);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r * kLines >= rows) break;
    if constexpr (!kByChannel) {
      step[0] = DeviceStep(launch.levels, launch.step_factor, scale[r]);
      nan = scale[r] == kScaleNan ? 0xffu : 0u;
#pragma unroll
      for (int i = 1; i < 8; ++i) step[i] = step[0];
    }
    Vector<kType> out;
    uint32_t high, low;
    field[r].Split(skip, &high, &low);
    DequantizeVector<kBits, kDelta>(launch.levels, high, low, step, nan, &m[kDelta ? r : 0], &out);
    if constexpr (kDelta) m[r].Store(reinterpret_cast<uint8_t*>(job.m) + (place + r * pitch) * 16);
    out.StoreRow(static_cast<uint8_t*>(job.out) + (place + r * pitch) * Vector<kType>::kBytes,
                 0xffu << (threadIdx.x & 24));
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

}  // namespace

bool DecodeFits(const QuantFormat& format, const Matrix& matrix) {
  if (matrix.hidden == 0 || matrix.hidden % 64 != 0 || matrix.positions == 0 ||
      matrix.hidden / 64 > 65535 || matrix.positions > 0x7fffffff)
    return false;
  return format.scale_by != ScaleBy::kGroup || format.group % 8 == 0;
}

Error DecodeStrips(const Launch<DecodeJob>& launch, DType dtype, bool by_channel, bool delta,
                   int count, Stream stream) {
  return ForDType(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    return delta ? Run<kType, true>(launch, by_channel, count, stream)
                 : Run<kType, false>(launch, by_channel, count, stream);
  });
}

}  // namespace isthmus::compress::cuda
