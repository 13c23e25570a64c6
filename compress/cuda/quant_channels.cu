// quant with a scale per channel, in one pass over memory.
//
// A scale belongs to a channel over all positions of the sample, so nothing can be coded before all
// of it was seen. The sample is cut into strips of 64 channels (one line of 128 bytes of bf16 a
// position); a cluster of up to 8 thread blocks takes a strip, holds it in its registers, exchanges
// its 64 maxima through distributed shared memory, and codes from the registers. Each byte is read
// once and written once.
#include <cuda_runtime.h>

#include "compress/cuda/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kStrip = 64;      // channels
constexpr int kVectors = 8;     // of eight, of a strip
constexpr int kMaxCluster = 8;  // what every device with clusters can do
constexpr int kMaxThreads = 512;

constexpr int RowsHeld(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }  // by a thread

bool DeviceHasClusters() {
  int device = 0, has = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has != 0;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Shared memory of a block. `words` of maxima: of two 16-bit channels each, or of one.
struct ChannelScratch {
  uint64_t arrived;  // an mbarrier: all blocks' maxima are here
  uint4 warp_max[kMaxThreads / 32][kStrip / 4];
  uint4 block_max[kMaxCluster][kStrip / 4];  // one row from each block of the cluster
  float inverse[kStrip], step[kStrip];
  int any_odd;
};

__device__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ uint32_t ClusterBlocks() {
  uint32_t n;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}

__device__ uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}

// The barrier of this block expects `bytes` from the cluster. Every thread calls it, and
// WaitForCluster before anything is sent to another block.
__device__ void OpenBarrier(ChannelScratch* shared, uint32_t bytes) {
  if (threadIdx.x == 0) {
    const uint32_t barrier = SharedAddress(&shared->arrived);
    shared->any_odd = 0;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ void WaitForCluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Stores `value` at `to` in block `rank` of the cluster, and counts it there.
__device__ void SendTo(uint32_t rank, uint4* to, uint64_t* barrier, const uint4& value) {
  uint32_t remote, remote_barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(SharedAddress(to)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote_barrier)
      : "r"(SharedAddress(barrier)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(remote_barrier)
      : "memory");
}

__device__ void WaitForMaxima(uint64_t* barrier) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(barrier))
        : "memory");
  }
}

// Each block sends its maxima to all blocks of the cluster, itself among them.
template <DType kType, bool kDelta>
__device__ void SendMaxima(Largest<kType, kDelta>* own, ChannelScratch* shared) {
  using Most = Largest<kType, kDelta>;
  constexpr int kQuads = Most::kWords / 4;  // of a vector
  constexpr uint32_t kChunks = kVectors * kQuads;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  own->Exchange(8);
  own->Exchange(16);
  if (lane < kVectors) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
      shared->warp_max[warp][lane * kQuads + q] = make_uint4(
          own->word[4 * q], own->word[4 * q + 1], own->word[4 * q + 2], own->word[4 * q + 3]);
  }
  __syncthreads();
  WaitForCluster();
  const uint32_t chunk = threadIdx.x % kChunks, rank = threadIdx.x / kChunks;
  if (rank >= ClusterBlocks()) return;
  uint4 most = shared->warp_max[0][chunk];
  for (uint32_t w = 1; w < blockDim.x / 32; ++w) {
    const uint4 other = shared->warp_max[w][chunk];
    most = make_uint4(Most::Larger(most.x, other.x), Most::Larger(most.y, other.y),
                      Most::Larger(most.z, other.z), Most::Larger(most.w, other.w));
  }
  SendTo(rank, &shared->block_max[ClusterRank()][chunk], &shared->arrived, most);
}

// What the first 64 threads make of the maxima; the cluster's first block writes the scales.
template <DType kType, bool kDelta>
__device__ void FindScale(const Launch<EncodeJob>& launch, const EncodeJob& job,
                          ChannelScratch* shared) {
  using Most = Largest<kType, kDelta>;
  const uint32_t channel = threadIdx.x;
  if (channel < kStrip) {
    WaitForMaxima(&shared->arrived);
    uint32_t most = 0;
    for (uint32_t r = 0; r < ClusterBlocks(); ++r) {
      const uint32_t* row = reinterpret_cast<const uint32_t*>(shared->block_max[r]);
      most = Most::Larger(most, row[Most::kPacked ? channel / 2 : channel]);
    }
    if (Most::kPacked) most = channel % 2 == 0 ? most & 0xffffu : most >> 16;
    const uint16_t scale = DeviceScaleOfBits(Most::Bits(most));
    shared->inverse[channel] = DeviceInverse(launch.levels, scale);
    if (kDelta) shared->step[channel] = DeviceStep(launch.levels, launch.step_factor, scale);
    if (IsOdd(scale)) shared->any_odd = 1;
    if (scale == kScaleNan) *job.not_finite = 1;
    if (ClusterRank() == 0)
      reinterpret_cast<uint16_t*>(job.body)[blockIdx.y * kStrip + channel] = scale;
  }
  __syncthreads();
}

// A thread's vectors: every `pitch` bytes; zeros from `rows` on.
template <DType kType, int kRows>
__device__ void LoadRows(const void* from, uint32_t at, uint32_t pitch, int rows, int lines,
                         Vector<kType> (&held)[kRows]) {
  const uint8_t* base = static_cast<const uint8_t*>(from);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    held[r].Clear();
    if (r * lines < rows) held[r].Load(base + (at + r * pitch));
  }
}

// Grid: blocks of a cluster x strips x samples.
template <DType kType, bool kDelta, int kBits>
__global__ void __launch_bounds__(kMaxThreads)
    ChannelKernel(const __grid_constant__ Launch<EncodeJob> launch) {
  constexpr int kRows = RowsHeld(kType);
  constexpr uint32_t kBytes = Vector<kType>::kBytes;
  __shared__ ChannelScratch shared;
  extern __shared__ __align__(8) uint8_t fields[];
  OpenBarrier(&shared, ClusterBlocks() * kVectors * 4 * Largest<kType, kDelta>::kWords);
  const EncodeJob& job = launch.jobs[blockIdx.z];
  const uint32_t vector = threadIdx.x % kVectors, line = threadIdx.x / kVectors;
  const uint32_t lines = blockDim.x / kVectors, row_vectors = launch.hidden / 8;
  const uint32_t first = blockIdx.x * lines * kRows + line;
  const uint32_t place = first * row_vectors + blockIdx.y * kVectors + vector;
  const uint32_t pitch = lines * row_vectors;
  const int rows = static_cast<int>(launch.positions) - static_cast<int>(first);  // from there on

  Vector<kType> a[kRows];
  Vector<DType::kBf16> m[kDelta ? kRows : 1];
  LoadRows(job.a, place * kBytes, pitch * kBytes, rows, lines, a);
  if constexpr (kDelta) LoadRows(job.m, place * 16, pitch * 16, rows, lines, m);
  Largest<kType, kDelta> largest;
#pragma unroll
  for (int r = 0; r < kRows; ++r) largest.Add(a[r], m[kDelta ? r : 0]);
  SendMaxima(&largest, &shared);
  FindScale<kType, kDelta>(launch, job, &shared);

  float inverse[8], step[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    inverse[i] = shared.inverse[vector * 8 + i];
    step[i] = kDelta ? shared.step[vector * 8 + i] : 0.0f;
  }
  const bool odd = shared.any_odd != 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    uint8_t* field = fields + ((r * lines + line) * kVectors + vector) * kBits;
    QuantizeAny<kBits, kDelta, true>(launch.levels, odd, &a[r], &m[kDelta ? r : 0], inverse, step,
                                     field);
    if constexpr (kDelta) {
      if (r * static_cast<int>(lines) < rows)
        m[r].Store(reinterpret_cast<uint8_t*>(job.m) + (place + r * pitch) * 16);
    }
  }
  __syncwarp();  // eight lanes made a line of 8 x kBits bytes: they write it as words
  if (vector >= kBits) return;
  uint8_t* codes = job.body + launch.codes_at;
  const uint32_t at = (place - vector) * kBits + vector * 8;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r * static_cast<int>(lines) >= rows) break;
    *reinterpret_cast<uint64_t*>(codes + (at + r * pitch * kBits)) =
        reinterpret_cast<const uint64_t*>(fields)[(r * lines + line) * kBits + vector];
  }
}
#else
template <DType kType, bool kDelta, int kBits>
__global__ void ChannelKernel(const __grid_constant__ Launch<EncodeJob> launch) {
  __trap();  // never launched: ChannelFits says no on devices without clusters
}
#endif

template <DType kType, bool kDelta>
Error Run(const Launch<EncodeJob>& launch, int count, Stream stream) {
  constexpr int kRows = RowsHeld(kType);
  int threads = 128;
  while (threads / kVectors * kRows * kMaxCluster < launch.positions) threads *= 2;
  const int rows = threads / kVectors * kRows;
  const int cluster = static_cast<int>((launch.positions + rows - 1) / rows);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(cluster), static_cast<unsigned>(launch.hidden / kStrip),
           static_cast<unsigned>(count));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(rows) * kVectors * launch.levels.bits;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return ForBits(launch.levels.bits, [&](auto bits) -> Error {
    const cudaError_t error =
        cudaLaunchKernelEx(&config, ChannelKernel<kType, kDelta, decltype(bits)::value>, launch);
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  });
}

}  // namespace

bool ChannelFits(const Matrix& matrix, DType dtype) {
  const int64_t most = int64_t{kMaxThreads} / kVectors * RowsHeld(dtype) * kMaxCluster;
  return matrix.hidden > 0 && matrix.hidden % kStrip == 0 && matrix.hidden / kStrip <= 65535 &&
         matrix.positions > 0 && matrix.positions <= most &&
         4 * matrix.elements() <= kMaxSampleBytes && DeviceHasClusters();
}

Error EncodeChannels(const Launch<EncodeJob>& launch, DType dtype, bool delta, int count,
                     Stream stream) {
  return ForDType(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    return delta ? Run<kType, true>(launch, count, stream)
                 : Run<kType, false>(launch, count, stream);
  });
}

}  // namespace isthmus::compress::cuda
