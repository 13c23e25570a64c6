// quant with a scale per channel, in one pass over memory.
//
// A scale belongs to a channel over all positions of the sample, so nothing can be coded before all
// of it was seen. The sample is cut into strips of 64 channels (one line of 128 bytes of bf16 a
// position); a cluster of up to 8 thread blocks takes a strip, holds it in its registers, exchanges
// its 64 maxima through distributed shared memory, and codes from the registers. Each byte is read
// once and written once.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "compress/cuda/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kStrip = 64;      // channels
constexpr int kVectors = 8;     // of eight, of a strip
constexpr int kMaxCluster = 8;  // what every device with clusters can do
constexpr int kMaxThreads = 512;

constexpr int RowsHeld(DType dtype) { return dtype == DType::kF32 ? 4 : 8; }  // by a thread

struct ChannelScratch {
  uint32_t warp_max[kMaxThreads / 32][kStrip];
  uint32_t block_max[kMaxCluster][kStrip];  // one row from each block of the cluster
  float inverse[kStrip], step[kStrip];
  int any_odd;
};

bool DeviceHasClusters() {
  int device = 0, has = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has != 0;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Maxima of the strip's channels over the cluster, from each thread's own eight.
template <DType kType, bool kDelta>
__device__ void ExchangeMaxima(Largest<kType, kDelta>* own, ChannelScratch* shared) {
  cg::cluster_group cluster = cg::this_cluster();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  own->Exchange(8);
  own->Exchange(16);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (lane < kVectors) shared->warp_max[warp][lane * 8 + i] = (*own)[i];
  }
  __syncthreads();
  cluster.barrier_wait();  // all blocks have started
  if (threadIdx.x < kStrip) {
    uint32_t most = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w)
      most = max(most, shared->warp_max[w][threadIdx.x]);
    for (unsigned r = 0; r < cluster.num_blocks(); ++r)
      cluster.map_shared_rank(shared, r)->block_max[cluster.block_rank()][threadIdx.x] = most;
  }
  cluster.sync();
}

// What the first 64 threads make of the maxima; the cluster's first block writes the scales.
__device__ void FindScale(const Launch<EncodeJob>& launch, const EncodeJob& job,
                          ChannelScratch* shared) {
  cg::cluster_group cluster = cg::this_cluster();
  const int channel = static_cast<int>(threadIdx.x);
  if (channel < kStrip) {
    uint32_t most = 0;
    for (unsigned r = 0; r < cluster.num_blocks(); ++r)
      most = max(most, shared->block_max[r][channel]);
    const uint16_t scale = DeviceScaleOfBits(most);
    shared->inverse[channel] = DeviceInverse(launch.levels, scale);
    shared->step[channel] = DeviceStep(launch.levels, launch.step_factor, scale);
    if (IsOdd(scale)) shared->any_odd = 1;
    if (scale == kScaleNan) *job.not_finite = 1;
    if (cluster.block_rank() == 0)
      reinterpret_cast<uint16_t*>(job.body)[blockIdx.y * kStrip + channel] = scale;
  }
  __syncthreads();
}

// Grid: blocks of a cluster x strips x samples.
template <DType kType, bool kDelta, int kBits>
__global__ void __launch_bounds__(kMaxThreads)
    ChannelKernel(const __grid_constant__ Launch<EncodeJob> launch) {
  constexpr int kRows = RowsHeld(kType);
  __shared__ ChannelScratch shared;
  extern __shared__ __align__(8) uint8_t fields[];
  cg::cluster_group cluster = cg::this_cluster();
  cluster.barrier_arrive();
  const EncodeJob& job = launch.jobs[blockIdx.z];
  const int vector = threadIdx.x % kVectors, line = threadIdx.x / kVectors;
  const int lines = blockDim.x / kVectors;
  const int64_t row_vectors = launch.hidden / 8;
  const int64_t first = static_cast<int64_t>(cluster.block_rank()) * lines * kRows + line;
  const int64_t place = first * row_vectors + blockIdx.y * kVectors + vector;
  if (threadIdx.x == 0) shared.any_odd = 0;

  Vector<kType> a[kRows];
  Vector<DType::kBf16> m[kDelta ? kRows : 1];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    a[r].Clear();
    if constexpr (kDelta) m[r].Clear();
    if (first + r * lines >= launch.positions) continue;
    a[r].Load(job.a, place + r * lines * row_vectors);
    if constexpr (kDelta) m[r].Load(job.m, place + r * lines * row_vectors);
  }
  Largest<kType, kDelta> largest;
#pragma unroll
  for (int r = 0; r < kRows; ++r) largest.Add(a[r], m[kDelta ? r : 0]);
  ExchangeMaxima(&largest, &shared);
  FindScale(launch, job, &shared);

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
    if (odd) {
      a[r].DropNotFinite();
      QuantizeVector<kBits, kDelta, true>(launch.levels, a[r], &m[kDelta ? r : 0], inverse, step,
                                          field);
    } else {
      QuantizeVector<kBits, kDelta, false>(launch.levels, a[r], &m[kDelta ? r : 0], inverse, step,
                                           field);
    }
    if constexpr (kDelta) {
      if (first + r * lines < launch.positions) m[r].Store(job.m, place + r * lines * row_vectors);
    }
  }
  __syncwarp();  // eight lanes made a line of 8 x bits bytes: they write it as words
  if (vector >= kBits) return;
  uint64_t* codes = reinterpret_cast<uint64_t*>(job.body + launch.codes_at);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first + r * lines;
    if (row >= launch.positions) continue;
    codes[(row * (launch.hidden / kStrip) + blockIdx.y) * kBits + vector] =
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
         matrix.positions > 0 && matrix.positions <= most && DeviceHasClusters();
}

Error EncodeChannels(const Launch<EncodeJob>& launch, DType dtype, bool delta, int count,
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
