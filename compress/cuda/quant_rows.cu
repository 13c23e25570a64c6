// quant with a scale per token or per group, in one pass over memory: a team of warps holds a
// position in its registers, finds the maxima, and codes from the registers.
#include <cuda_runtime.h>

#include "compress/cuda/quant_paths.cuh"

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

// Block: (32, warps of a team, teams). Grid: teams of rows x 1 x samples.
template <DType kType, bool kDelta, bool kByToken, int kBits>
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
  uint16_t scale = 0;
  float inverse[8], step[8];
  const auto set_scale = [&](uint32_t most) {
    scale = DeviceScaleOfBits(Most::Bits(most));
    inverse[0] = DeviceInverse(launch.levels, scale);
    step[0] = kDelta ? DeviceStep(launch.levels, launch.step_factor, scale) : 0.0f;
#pragma unroll
    for (int i = 1; i < 8; ++i) inverse[i] = inverse[0], step[i] = step[0];
  };
  if constexpr (kByToken) {
    Most largest;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) largest.Add(a[k], m[kDelta ? k : 0]);
    set_scale(TeamMax(largest.Most(), warp, blockDim.y, team_max));
  }
  uint16_t* scales = reinterpret_cast<uint16_t*>(job.body) + row * launch.groups_of_row;
  uint8_t* mine = fields + warp * kHeld * 32 * kBits;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (first + k * 32 >= row_vectors) break;  // the same for the whole warp
    const int vector = first + k * 32 + lane;
    if constexpr (!kByToken) {
      Most largest;
      largest.Add(a[k], m[kDelta ? k : 0]);
      uint32_t most = largest.Most();
      for (int d = 1; d < launch.group_vectors; d *= 2)
        most = max(most, __shfl_xor_sync(~0u, most, d));
      set_scale(most);
    }
    uint8_t* field = mine + (k * 32 + lane) * kBits;
    a[k].Forget();
    if (IsOdd(scale)) {
      a[k].DropNotFinite();
      QuantizeVector<kBits, kDelta, true, false>(launch.levels, a[k], &m[kDelta ? k : 0], inverse,
                                                 step, field);
    } else {
      QuantizeVector<kBits, kDelta, false, false>(launch.levels, a[k], &m[kDelta ? k : 0], inverse,
                                                  step, field);
    }
    if (k * 32 + lane >= count) continue;
    if constexpr (kDelta) m[k].Store(buffer + (k * 32 + lane) * 16);
    const int first_of_group = kByToken ? vector : vector & (launch.group_vectors - 1);
    if (first_of_group != 0) continue;
    scales[kByToken ? 0 : vector >> (31 - __clz(launch.group_vectors))] = scale;
    if (scale == kScaleNan) *job.not_finite = 1;
  }
  __syncwarp();  // the warp made a run of bytes: it writes them as words
  CopyWords(mine, min(kHeld * 32, count) / 8 * kBits, job.body + launch.codes_at + start * kBits);
}

template <DType kType, bool kDelta>
Error Run(const Launch<EncodeJob>& launch, int count, Stream stream) {
  constexpr int kHeld = VectorsHeld(kType);
  const int warps = static_cast<int>((launch.hidden / 8 + kHeld * 32 - 1) / (kHeld * 32));
  const int teams = warps >= kWarps ? 1 : kWarps / warps;
  const dim3 block(32, static_cast<unsigned>(warps), static_cast<unsigned>(teams));
  const dim3 grid(static_cast<unsigned>((launch.positions + teams - 1) / teams), 1,
                  static_cast<unsigned>(count));
  const size_t shared = static_cast<size_t>(warps * teams * kHeld * 32 * launch.levels.bits);
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  return ForBits(launch.levels.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    if (launch.group_vectors == 0) {
      RowKernel<kType, kDelta, true, kBits><<<grid, block, shared, s>>>(launch);
    } else {
      RowKernel<kType, kDelta, false, kBits><<<grid, block, shared, s>>>(launch);
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
  return format.group % 8 == 0 && vectors > 0 && vectors <= 32 && 32 % vectors == 0;
}

Error EncodeRows(const Launch<EncodeJob>& launch, DType dtype, bool delta, int count,
                 Stream stream) {
  switch (dtype) {
    case DType::kF32:
      return delta ? Run<DType::kF32, true>(launch, count, stream)
                   : Run<DType::kF32, false>(launch, count, stream);
    case DType::kF16:
      return delta ? Run<DType::kF16, true>(launch, count, stream)
                   : Run<DType::kF16, false>(launch, count, stream);
    default:
      return delta ? Run<DType::kBf16, true>(launch, count, stream)
                   : Run<DType::kBf16, false>(launch, count, stream);
  }
}

}  // namespace isthmus::compress::cuda
