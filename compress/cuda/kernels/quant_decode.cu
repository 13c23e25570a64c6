// quant and delta(quant) back to elements, in one pass: unpack, multiply, add the buffer, write the
// buffer and the result. A block takes a run of neighbouring vectors of eight channels, across
// positions, and the same run of positions further on.
#include <cuda_runtime.h>

#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;
// Positions of a thread.
constexpr int RowsOf(DType dtype, bool delta) { return delta || dtype == DType::kF32 ? 2 : 4; }

// The steps of eight channels, from their scales; returns a bit for each that is NaN.
__device__ uint32_t FindSteps(const Launch<DecodeJob>& launch, const uint4& packed, float* step) {
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

// A thread's positions are `jump` apart. Grid: runs of vectors of the first `jump` positions x 1 x
// samples.
template <DType kType, bool kDelta, bool kByChannel, int kBits>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(const __grid_constant__ Launch<DecodeJob> launch, const uint32_t jump) {
  constexpr int kRows = RowsOf(kType, kDelta);
  const DecodeJob& job = launch.jobs[blockIdx.z];
  const uint32_t row_vectors = static_cast<uint32_t>(launch.hidden / 8);
  const uint32_t place = blockIdx.x * kThreads + threadIdx.x, pitch = jump * row_vectors;
  const uint32_t first = place / row_vectors, column = place % row_vectors;
  const int rows = static_cast<int>(launch.positions) - static_cast<int>(first);  // from there on
  if (first >= jump || rows <= 0) return;
  const uint8_t* codes = job.body + launch.codes_at;
  const uint32_t skip = place * kBits % 4;  // of every row: a row has a multiple of 8 bytes
  const uint32_t row_scales = static_cast<uint32_t>(launch.groups_of_row);
  uint32_t at_scale = first * row_scales;
  if (!kByChannel && launch.group_vectors != 0)
    at_scale += column / static_cast<uint32_t>(launch.group_vectors);

  PackedField<kBits> field[kRows];
  uint32_t scale[kRows];
  Vector<DType::kBf16> m[kDelta ? kRows : 1];
#pragma unroll
  for (uint32_t r = 0; r < kRows; ++r) {  // past the end the first is loaded again: no branch
    const uint32_t k = static_cast<int>(r * jump) < rows ? r : 0;
    field[r].Load(codes, (place + k * pitch) * kBits, skip);
    if constexpr (kDelta) m[r].Load(reinterpret_cast<uint8_t*>(job.m) + (place + k * pitch) * 16);
    if constexpr (!kByChannel)
      scale[r] =
          __ldg(reinterpret_cast<const uint16_t*>(job.body) + (at_scale + k * jump * row_scales));
  }
  float step[8];
  uint32_t nan = 0;
  if constexpr (kByChannel)
    nan = FindSteps(launch, __ldg(reinterpret_cast<const uint4*>(job.body) + column), step);
#pragma unroll
  for (uint32_t r = 0; r < kRows; ++r) {
    if (static_cast<int>(r * jump) >= rows) break;
    if constexpr (!kByChannel) {
      step[0] = StepOf(launch.levels, launch.step_factor, scale[r]);
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
  constexpr int kRows = RowsOf(kType, kDelta);
  const int64_t jump = (launch.positions + kRows - 1) / kRows;
  const dim3 grid(static_cast<unsigned>((jump * (launch.hidden / 8) + kThreads - 1) / kThreads), 1,
                  static_cast<unsigned>(count));
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  const uint32_t rows = static_cast<uint32_t>(jump);
  return ForBits(launch.levels.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    if (by_channel) {
      DecodeKernel<kType, kDelta, true, kBits><<<grid, kThreads, 0, s>>>(launch, rows);
    } else {
      DecodeKernel<kType, kDelta, false, kBits><<<grid, kThreads, 0, s>>>(launch, rows);
    }
    return LastError();
  });
}

}  // namespace

bool DecodeFits(const QuantFormat& format, const Matrix& matrix) {
  if (matrix.hidden == 0 || matrix.hidden % 64 != 0 || matrix.positions == 0 ||
      4 * matrix.elements() > kMaxSampleBytes)
    return false;
  return format.scale_by != ScaleBy::kGroup || format.group % 8 == 0;
}

Error DecodeRuns(const Launch<DecodeJob>& launch, DType dtype, bool by_channel, bool delta,
                 int count, Stream stream) {
  return ForDType(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    return delta ? Run<kType, true>(launch, by_channel, count, stream)
                 : Run<kType, false>(launch, by_channel, count, stream);
  });
}

}  // namespace isthmus::compress::cuda
