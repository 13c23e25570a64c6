// quant with a scale per token or per group, in one pass over memory: a team of warps holds a
// position in its registers, finds the maxima, and codes from the registers.
#include <cuda_runtime.h>

#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kMaxWarps = 16;  // of a block
constexpr int kWarps = 4;      // of a block, where a team is smaller

constexpr int VectorsHeld(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }  // by a thread

// The largest over a team of `team_warps` warps; all threads of the block take part.
__device__ uint32_t TeamMax(uint32_t own, int warp, int team_warps, uint32_t* shared) {
  own = __reduce_max_sync(~0u, own);
  if (team_warps == 1) return own;
  shared[warp] = own;
  __syncthreads();
  const int first = warp / team_warps * team_warps;
  for (int w = first; w < first + team_warps; ++w) own = max(own, shared[w]);
  return own;
}

// Every 32nd vector; zeros from `count` on.
template <DType kType, int kHeld>
__device__ void LoadVectors(const uint8_t* from, int count, Vector<kType> (&held)[kHeld]) {
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    held[k].Clear();
    if (k * 32 + lane < count) held[k].Load(from + (k * 32 + lane) * Vector<kType>::kBytes);
  }
}

// By the lanes of a warp.
__device__ void CopyWords(const uint8_t* from, int words, uint8_t* to) {
  for (int w = threadIdx.x; w < words; w += 32)
    reinterpret_cast<uint64_t*>(to)[w] = reinterpret_cast<const uint64_t*>(from)[w];
}

// Of kHeld values in each lane, the largest over each run of `lanes` lanes (a power of two): all of
// them in few exchanges, each of which halves the values that a lane still has. A lane ends with
// kOwn = kHeld / min(lanes, kHeld) of them: of value (lane % (kHeld / kOwn)) x kOwn and those
// after.
template <typename Most, int kHeld, int kOwn>
__device__ void LargestOfRuns(int lanes, uint32_t (&value)[kHeld]) {
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int left = kHeld / 2; left >= kOwn; left /= 2) {
    const int bit = left / kOwn;
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const uint32_t sent = upper ? value[i] : value[left + i];
      const uint32_t kept = upper ? value[left + i] : value[i];
      value[i] = max(kept, __shfl_xor_sync(~0u, sent, bit));
    }
  }
  for (int bit = kHeld / kOwn; bit < lanes; bit *= 2) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) value[i] = max(value[i], __shfl_xor_sync(~0u, value[i], bit));
  }
}

// The scales of a warp's groups: each lane finds kOwn of those of its group's vectors, so that none
// is found twice, and gives them to the others.
template <DType kType, bool kDelta, int kHeld, int kOwn>
struct GroupScales {
  float inverse[kOwn], step[kOwn];
  bool odd;  // any of the warp's

  __device__ GroupScales(const Launch<EncodeJob>& launch, const EncodeJob& job,
                         const Vector<kType> (&a)[kHeld],
                         const Vector<DType::kBf16> (&m)[kDelta ? kHeld : 1], int count,
                         uint16_t* scales) {
    using Most = Largest<kType, kDelta>;
    constexpr int kSharers = kHeld / kOwn;  // lanes of a group that find different scales
    const int lane = static_cast<int>(threadIdx.x), lanes = launch.group_vectors;
    uint32_t most[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      Most largest;
      largest.Add(a[k], m[kDelta ? k : 0]);
      most[k] = largest.Most();
    }
    LargestOfRuns<Most, kHeld, kOwn>(lanes, most);
    const int first = lane & -lanes, shift = 31 - __clz(lanes);
    odd = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const uint16_t scale = DeviceScaleOfBits(Most::Bits(most[i]));
      inverse[i] = DeviceInverse(launch.levels, scale);
      step[i] = kDelta ? DeviceStep(launch.levels, launch.step_factor, scale) : 0.0f;
      odd = odd || IsOdd(scale);
      const int vector = (lane % kSharers * kOwn + i) * 32 + first;  // the group's first
      if ((lane & (lanes - 1)) >= kSharers || vector >= count) continue;
      scales[vector >> shift] = scale;
      if (scale == kScaleNan) *job.not_finite = 1;
    }
    odd = __any_sync(~0u, odd);
  }
  // Of the lane's vector k.
  __device__ float Of(const float (&own)[kOwn], int lanes, int k) const {
    const int lane = static_cast<int>(threadIdx.x);
    return __shfl_sync(~0u, own[k % kOwn], (lane & -lanes) | k / kOwn);
  }
};

// Whose scales a kernel finds: of a token, of groups of as many lanes as a lane holds vectors or
// more, or of groups of half as many.
enum class Scales { kOfToken, kOfGroup, kOfSmallGroup };

// Block: (32, warps of a team, teams). Grid: teams of rows x 1 x samples.
template <DType kType, bool kDelta, Scales kScales, int kBits>
__global__ void __launch_bounds__(32 * kMaxWarps)
    RowKernel(const __grid_constant__ Launch<EncodeJob> launch) {
  constexpr int kHeld = VectorsHeld(kType);
  using Most = Largest<kType, kDelta>;
  __shared__ uint32_t team_max[kMaxWarps];
  extern __shared__ __align__(8) uint8_t fields[];
  const EncodeJob& job = launch.jobs[blockIdx.z];
  const int lane = threadIdx.x, part = threadIdx.y;
  const int warp = threadIdx.z * blockDim.y + part;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  const int row_vectors = static_cast<int>(launch.hidden / 8), first = part * kHeld * 32;

  Vector<kType> a[kHeld];
  Vector<DType::kBf16> m[kDelta ? kHeld : 1];
  const int count = row < launch.positions ? row_vectors - first : 0;  // of vectors, from there on
  const int64_t start = row * row_vectors + first;
  uint8_t* buffer = reinterpret_cast<uint8_t*>(job.m) + start * 16;
  LoadVectors(static_cast<const uint8_t*>(job.a) + start * Vector<kType>::kBytes, count, a);
  if constexpr (kDelta) LoadVectors(buffer, count, m);
  uint16_t* scales = reinterpret_cast<uint16_t*>(job.body) + row * launch.groups_of_row;
  uint8_t* mine = fields + warp * kHeld * 32 * kBits;
  uint8_t* codes = job.body + launch.codes_at + start * kBits;
  const auto quantize = [&](int k, bool odd, float one_inverse, float one_step) {
    float inverse[8], step[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) inverse[i] = one_inverse, step[i] = one_step;
    const int at = k * 32 + lane;
    uint32_t high, low;
    QuantizeAny<kBits, kDelta, false>(launch.levels, odd, &a[k], &m[kDelta ? k : 0], inverse, step,
                                      &high, &low);
    if constexpr (!IsWhole(kBits)) StoreField<kBits>(high, low, mine + at * kBits);
    if (at >= count) return;
    if constexpr (IsWhole(kBits)) StoreField<kBits>(high, low, codes + at * kBits);
    if constexpr (kDelta) m[k].Store(buffer + at * 16);
  };
  if constexpr (kScales == Scales::kOfToken) {
    Most largest;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) largest.Add(a[k], m[kDelta ? k : 0]);
    const uint16_t scale =
        DeviceScaleOfBits(Most::Bits(TeamMax(largest.Most(), warp, blockDim.y, team_max)));
    const float inverse = DeviceInverse(launch.levels, scale);
    const float step = kDelta ? DeviceStep(launch.levels, launch.step_factor, scale) : 0.0f;
    if (first + lane == 0 && count > 0) {
      scales[0] = scale;
      if (scale == kScaleNan) *job.not_finite = 1;
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * 32 >= row_vectors) break;  // the same for the whole warp
      quantize(k, IsOdd(scale), inverse, step);
    }
  } else {
    constexpr int kOwn = kScales == Scales::kOfGroup ? 1 : 2;
    const int lanes = launch.group_vectors;
    const GroupScales<kType, kDelta, kHeld, kOwn> found(launch, job, a, m, count,
                                                        scales + first / lanes);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first + k * 32 >= row_vectors) break;
      quantize(k, found.odd, found.Of(found.inverse, lanes, k),
               kDelta ? found.Of(found.step, lanes, k) : 0.0f);
    }
  }
  if constexpr (IsWhole(kBits)) return;
  __syncwarp();  // the warp made a run of bytes: it writes them as words
  CopyWords(mine, min(kHeld * 32, count) / 8 * kBits, codes);
}

template <DType kType, bool kDelta>
Error Run(const Launch<EncodeJob>& launch, int count, Stream stream) {
  constexpr int kHeld = VectorsHeld(kType);
  const int warps = static_cast<int>((launch.hidden / 8 + kHeld * 32 - 1) / (kHeld * 32));
  const int teams = warps >= kWarps ? 1 : kWarps / warps;
  const dim3 block(32, static_cast<unsigned>(warps), static_cast<unsigned>(teams));
  const dim3 grid(static_cast<unsigned>((launch.positions + teams - 1) / teams), 1,
                  static_cast<unsigned>(count));
  const int bits_kept = IsWhole(launch.levels.bits) ? 0 : launch.levels.bits;
  const size_t shared = static_cast<size_t>(warps * teams * kHeld * 32 * bits_kept);
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  return ForBits(launch.levels.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    if (launch.group_vectors == 0) {
      RowKernel<kType, kDelta, Scales::kOfToken, kBits><<<grid, block, shared, s>>>(launch);
    } else if (launch.group_vectors >= kHeld) {
      RowKernel<kType, kDelta, Scales::kOfGroup, kBits><<<grid, block, shared, s>>>(launch);
    } else {
      RowKernel<kType, kDelta, Scales::kOfSmallGroup, kBits><<<grid, block, shared, s>>>(launch);
    }
    return LastError();
  });
}

}  // namespace

bool RowFits(const QuantFormat& format, const Matrix& matrix, DType dtype) {
  if (matrix.hidden == 0 || matrix.hidden % 64 != 0 || matrix.positions == 0 ||
      matrix.positions > 0x7fffffff ||
      matrix.hidden > int64_t{kMaxWarps} * 32 * VectorsHeld(dtype) * 8)
    return false;
  if (format.scale_by == ScaleBy::kToken) return true;
  const int64_t vectors = format.group / 8;  // of a group: lanes of a warp must divide evenly
  return format.group % 8 == 0 && vectors >= 4 && vectors <= 32 && 32 % vectors == 0;
}

Error EncodeRows(const Launch<EncodeJob>& launch, DType dtype, bool delta, int count,
                 Stream stream) {
  return ForDType(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    return delta ? Run<kType, true>(launch, count, stream)
                 : Run<kType, false>(launch, count, stream);
  });
}

}  // namespace isthmus::compress::cuda
