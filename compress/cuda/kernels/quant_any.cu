// quant for every shape, alignment, scale rule and rounding: scales in one pass, codes in another.
// Not tuned. Sums are added in the order that the CPU adds them (compress/simd/quantize.h).
#include <cuda_runtime.h>

#include "base/rng.h"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRowsOfBlock = 64;  // of the maximum over channels

struct Any {
  int64_t group;  // elements of a scale group in a position; 0: the whole position
  uint64_t seed;
  ScaleBy scale_by;
  ScaleRule rule;
  bool stochastic;
  DType dtype;
  uint32_t* max_bits;  // count x scales
  float* sums;         // the same
};

__device__ float InputAt(const EncodeJob& job, DType dtype, int64_t i) {
  const float a = ElementAt(job.a, dtype, i);
  return job.m == nullptr ? a : __fsub_rn(a, Bf16Bits(job.m[i]));
}

__device__ float TermOf(ScaleRule rule, float x) {
  return rule == ScaleRule::kRms ? __fmul_rn(x, x) : fabsf(x);
}

// Grid: channels x runs of rows (one run where sums are needed) x samples.
__global__ void AnyChannelMax(const __grid_constant__ Launch<EncodeJob> launch, Any any,
                              int64_t rows) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= launch.hidden) return;
  const EncodeJob& job = launch.jobs[blockIdx.z];
  const int64_t first = blockIdx.y * rows, end = min(first + rows, launch.positions);
  uint32_t most = 0;
  float sum = 0.0f;
  for (int64_t p = first; p < end; ++p) {
    const float x = InputAt(job, any.dtype, p * launch.hidden + channel);
    most = max(most, Magnitude(x));
    sum = __fadd_rn(sum, TermOf(any.rule, x));
  }
  const int64_t at = blockIdx.z * launch.scales + channel;
  atomicMax(any.max_bits + at, most);
  if (any.rule != ScaleRule::kMax) any.sums[at] = sum;
}

// A warp a scale. Sums: 16 strided partial sums, added pairwise.
__global__ void AnyGroupMax(const __grid_constant__ Launch<EncodeJob> launch, Any any) {
  const int64_t scale = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (scale >= launch.scales) return;
  const EncodeJob& job = launch.jobs[blockIdx.z];
  const int lane = threadIdx.x % 32;
  const int64_t in_row = scale % launch.groups_of_row * any.group;
  const int64_t n = any.group > 0 ? min(any.group, launch.hidden - in_row) : launch.hidden;
  const int64_t start = scale / launch.groups_of_row * launch.hidden + in_row;
  uint32_t most = 0;
  for (int64_t i = lane; i < n; i += 32)
    most = max(most, Magnitude(InputAt(job, any.dtype, start + i)));
  most = __reduce_max_sync(~0u, most);
  float sum = 0.0f;
  if (any.rule != ScaleRule::kMax) {
    for (int64_t i = lane; lane < 16 && i < n; i += 16)
      sum = __fadd_rn(sum, TermOf(any.rule, InputAt(job, any.dtype, start + i)));
    for (int width = 8; width > 0; width /= 2)
      sum = __fadd_rn(sum, __shfl_down_sync(~0u, sum, width));
  }
  if (lane != 0) return;
  any.max_bits[blockIdx.z * launch.scales + scale] = most;
  any.sums[blockIdx.z * launch.scales + scale] = sum;
}

__device__ uint16_t ScaleOf(ScaleRule rule, uint32_t most, float sum, int64_t n) {
  if (rule == ScaleRule::kMax) return DeviceScaleOfBits(most);
  if (most >= 0x7f800000u) return kScaleNan;
  if (n == 0) return 0;
  float s = __fdiv_rn(sum, static_cast<float>(n));
  if (rule == ScaleRule::kRms) s = __fmul_rn(2.0f, __fsqrt_rn(s));
  return DeviceScaleOfBits(min(__float_as_uint(s), 0x7f7fffffu));
}

__global__ void AnyScales(const __grid_constant__ Launch<EncodeJob> launch, Any any) {
  const int64_t scale = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (scale >= launch.scales) return;
  const EncodeJob& job = launch.jobs[blockIdx.z];
  int64_t n = launch.positions;
  if (any.scale_by == ScaleBy::kToken) n = launch.hidden;
  if (any.scale_by == ScaleBy::kGroup)
    n = min(any.group, launch.hidden - scale % launch.groups_of_row * any.group);
  const int64_t at = blockIdx.z * launch.scales + scale;
  const uint16_t s = ScaleOf(any.rule, any.max_bits[at], any.sums[at], n);
  reinterpret_cast<uint16_t*>(job.body)[scale] = s;
  if (s == kScaleNan) *job.not_finite = 1;
}

template <typename Job>
__device__ uint16_t ScaleAt(const Launch<Job>& launch, const Any& any, const uint8_t* body,
                            int64_t element) {
  const int64_t p = element / launch.hidden, c = element % launch.hidden;
  int64_t scale = c;
  if (any.scale_by == ScaleBy::kToken) scale = p;
  if (any.scale_by == ScaleBy::kGroup) scale = p * launch.groups_of_row + c / any.group;
  return reinterpret_cast<const uint16_t*>(body)[scale];
}

// The level of x, less the offset.
__device__ float LevelOf(const Any& any, const Levels& l, const EncodeJob& job, float x,
                         float inverse, int64_t element) {
  if (!any.stochastic) return __fsub_rn(Nearest<true>(l, x, inverse), kRounder);
  const uint64_t random = RandomBits(any.seed, job.draw, static_cast<uint64_t>(element));
  const float u = __fmul_rn(static_cast<float>(random >> 40), 0x1p-24f);
  const float y = floorf(__fadd_rn(__fadd_rn(__fmul_rn(x, inverse), l.bias), u));
  return fminf(fmaxf(y, l.low), l.high);
}

// A thread codes eight elements, which make `bits` whole bytes.
__global__ void AnyQuantize(const __grid_constant__ Launch<EncodeJob> launch, Any any) {
  const EncodeJob& job = launch.jobs[blockIdx.z];
  const Levels& l = launch.levels;
  const int64_t n = launch.positions * launch.hidden;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (first >= n) return;
  const int count = static_cast<int>(min(int64_t{8}, n - first));
  uint64_t field = 0;
  for (int i = 0; i < count; ++i) {
    const uint16_t scale = ScaleAt(launch, any, job.body, first + i);
    float x = InputAt(job, any.dtype, first + i);
    if (Magnitude(x) >= 0x7f800000u) x = 0.0f;
    const float level = LevelOf(any, l, job, x, DeviceInverse(l, scale), first + i);
    field |= static_cast<uint64_t>(static_cast<int32_t>(level) + l.offset) << (l.bits * (7 - i));
    if (job.m == nullptr) continue;
    const float sum = __fadd_rn(Bf16Bits(job.m[first + i]),
                                ValueOf<true>(l, level, DeviceStep(l, launch.step_factor, scale)));
    job.m[first + i] = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
  }
  uint8_t* to = job.body + launch.codes_at + first / 8 * l.bits;
  for (int b = 0; b < (count * l.bits + 7) / 8; ++b)
    to[b] = static_cast<uint8_t>(field >> (8 * (l.bits - 1 - b)));
}

// What a NaN scale decodes to has one form, whatever the sign of the code.
__device__ void StoreAt(void* out, DType dtype, int64_t i, float x) {
  StoreElement(out, dtype, i, Magnitude(x) > 0x7f800000u ? __uint_as_float(kQuietNan) : x);
}

__global__ void AnyDequantize(const __grid_constant__ Launch<DecodeJob> launch, Any any) {
  const DecodeJob& job = launch.jobs[blockIdx.z];
  const Levels& l = launch.levels;
  const int64_t n = launch.positions * launch.hidden;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (first >= n) return;
  const int count = static_cast<int>(min(int64_t{8}, n - first));
  const uint8_t* from = job.body + launch.codes_at + first / 8 * l.bits;
  uint64_t field = 0;
  for (int b = 0; b < (count * l.bits + 7) / 8; ++b)
    field |= static_cast<uint64_t>(from[b]) << (8 * (l.bits - 1 - b));
  for (int i = 0; i < count; ++i) {
    const int32_t code =
        static_cast<int32_t>(field >> (l.bits * (7 - i)) & ((uint64_t{1} << l.bits) - 1));
    const float step = DeviceStep(l, launch.step_factor, ScaleAt(launch, any, job.body, first + i));
    float x = ValueOf<true>(l, static_cast<float>(code - l.offset), step);
    if (job.m != nullptr) {
      x = __fadd_rn(Bf16Bits(job.m[first + i]), x);
      StoreAt(job.m, DType::kBf16, first + i, x);
    }
    StoreAt(job.out, any.dtype, first + i, x);
  }
}

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

Any MakeAny(const QuantFormat& format, DType dtype) {
  Any any = {};
  any.group = format.scale_by == ScaleBy::kGroup ? format.group : 0;
  any.seed = format.seed;
  any.scale_by = format.scale_by;
  any.rule = format.rule;
  any.stochastic = format.stochastic;
  any.dtype = dtype;
  return any;
}

}  // namespace

Error EncodeAny(const QuantFormat& format, const Launch<EncodeJob>& launch, DType dtype, int count,
                void* scratch, Stream stream) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  Any any = MakeAny(format, dtype);
  any.max_bits = static_cast<uint32_t*>(scratch);
  any.sums = reinterpret_cast<float*>(any.max_bits + count * launch.scales);
  if (launch.scales == 0) return nullptr;
  const cudaError_t cleared =
      cudaMemsetAsync(scratch, 0, static_cast<size_t>(8 * count * launch.scales), s);
  if (cleared != cudaSuccess) return cudaGetErrorString(cleared);
  const unsigned samples = static_cast<unsigned>(count);
  if (format.scale_by == ScaleBy::kChannel) {
    // Enough runs of rows to fill a device, few enough for a grid.
    int64_t rows = launch.positions;
    if (format.rule == ScaleRule::kMax)
      rows = max(kRowsOfBlock, (launch.positions + 65534) / 65535);
    rows = max(rows, int64_t{1});
    const unsigned runs =
        static_cast<unsigned>(max((launch.positions + rows - 1) / rows, int64_t{1}));
    AnyChannelMax<<<dim3(Blocks(launch.hidden), runs, samples), kThreads, 0, s>>>(launch, any,
                                                                                  rows);
  } else {
    AnyGroupMax<<<dim3(Blocks(32 * launch.scales), 1, samples), kThreads, 0, s>>>(launch, any);
  }
  AnyScales<<<dim3(Blocks(launch.scales), 1, samples), kThreads, 0, s>>>(launch, any);
  const int64_t fields = (launch.positions * launch.hidden + 7) / 8;
  if (fields > 0) AnyQuantize<<<dim3(Blocks(fields), 1, samples), kThreads, 0, s>>>(launch, any);
  return LastError();
}

Error DecodeAny(const QuantFormat& format, const Launch<DecodeJob>& launch, DType dtype, int count,
                Stream stream) {
  const int64_t fields = (launch.positions * launch.hidden + 7) / 8;
  if (fields == 0) return nullptr;
  AnyDequantize<<<dim3(Blocks(fields), 1, static_cast<unsigned>(count)), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(launch, MakeAny(format, dtype));
  return LastError();
}

}  // namespace isthmus::compress::cuda
