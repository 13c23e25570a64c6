// quant with a scale per channel, in one pass over memory.
//
// A scale belongs to a channel over all positions of the sample, so nothing can be coded before all
// of it was seen. The sample is cut into strips of 64 channels (one line of 128 bytes of bf16 a
// position); a cluster of up to 8 thread blocks takes a strip, holds it in its shared memory,
// exchanges its 64 maxima through distributed shared memory, and codes from there. Each byte is
// read once and written once.
#include <cuda_runtime.h>

#include "compress/cuda/kernels/cluster.cuh"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kStrip = 64;              // channels
constexpr int kVectors = 8;             // of eight, of a strip
constexpr int kMaxCluster = 8;          // what every device with clusters can do
constexpr int kRun = 128;               // positions that a block takes at once
constexpr int kMaxPositions = 4096;     // shared memory holds four runs a block
constexpr int kUsualShared = 40 << 10;  // bytes that a block has without asking

constexpr int ThreadsOf(DType dtype) { return dtype == DType::kF32 ? 256 : 128; }

// Of a block.
template <DType kType, bool kDelta, int kBits>
struct Shape {
  static constexpr int kThreads = ThreadsOf(kType);
  // A multiprocessor is to hold that many blocks: it sets the registers of a thread.
  static constexpr int kBlocks = kType == DType::kF32 ? (kDelta ? 3 : 4) : (kDelta ? 5 : 8);
  static constexpr uint32_t kQuads = Vector<kType>::kWords / 4;  // 16 bytes each, of a vector
  static constexpr uint32_t kRowQuads = kVectors * kQuads;       // of a row
  // Two neighbouring vectors of a row a thread, else one: two make longer runs of codes, but m'
  // would be written in halves of sectors.
  static constexpr bool kPairs = !kDelta && kType != DType::kF32;
  // Codes lie in shared memory before they are written: whole fields and rows of three bits don't.
  static constexpr bool kFields = !IsWhole(kBits) && !(kPairs && kBits == 3);
  static constexpr int kFieldBytes = kFields ? kRun * kVectors * kBits : 0;
};

bool DeviceHasClusters() {
  int device = 0, has = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has != 0;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Shared memory of a block beside its strip. `words` of maxima: of two 16-bit channels each, or of
// one.
template <int kThreads>
struct ChannelScratch {
  uint64_t arrived;  // an mbarrier: all blocks' maxima are here
  uint4 warp_max[kThreads / 32][kStrip / 4];
  uint4 block_max[kMaxCluster][kStrip / 4];  // one row from each block of the cluster
  float inverse[kStrip], step[kStrip];
  int any_odd[kStrip / 32];
};

// How a block codes.
template <DType kType, bool kDelta, int kBits>
struct Coding : Shape<kType, kDelta, kBits> {
  static constexpr bool kPairs = Shape<kType, kDelta, kBits>::kPairs;
  static constexpr uint32_t kTeam = kPairs ? 4 : 8;             // threads that code a row
  static constexpr uint32_t kLines = ThreadsOf(kType) / kTeam;  // rows that are coded at once

  // Where quad `quad` of a row lies in it: so that no two threads of a load meet in a bank.
  __device__ static uint32_t Place(uint32_t row, uint32_t quad) {
    if (kType == DType::kF32) return quad ^ (quad >> 3 & 1);
    return kPairs ? quad ^ (row & 7) : quad;
  }
};

// What a block works on: positions from `first` on of strip `strip`.
struct Part {
  uint32_t strip, first, row_vectors;
  int rows;         // of the sample, from `first` on
  int runs;         // that the block takes
  uint4 *a, *m;     // shared memory
  uint8_t* fields;  // a run's codes, where they don't go straight to memory

  // In vectors, of the sample.
  __device__ uint32_t At(uint32_t row, uint32_t vector) const {
    return (first + row) * row_vectors + strip * kVectors + vector;
  }
};

// Asks for the block's rows; those past the sample's end count as zeros.
template <typename S, bool kDelta>
__device__ void Load(const EncodeJob& job, const Part& part) {
  constexpr uint32_t kLines = S::kThreads / S::kRowQuads, kMLines = S::kThreads / kVectors;
  const uint8_t* from = static_cast<const uint8_t*>(job.a);
  for (int run = 0; run < part.runs; ++run) {
    const uint32_t quad = threadIdx.x % S::kRowQuads;
    const uint32_t row0 = run * kRun + threadIdx.x / S::kRowQuads;
#pragma unroll
    for (uint32_t r = 0; r < kRun / kLines; ++r) {
      const uint32_t row = row0 + r * kLines;
      const bool past = static_cast<int>(row) >= part.rows;
      const uint32_t at = past ? 0 : part.At(row, 0) * S::kQuads + quad;
      CopyAsync(part.a + row * S::kRowQuads + S::Place(row, quad), from + at * 16, past);
    }
    if constexpr (kDelta) {
      const uint32_t vector = threadIdx.x % kVectors;
      const uint8_t* buffer = reinterpret_cast<const uint8_t*>(job.m);
#pragma unroll
      for (uint32_t r = 0; r < kRun / kMLines; ++r) {
        const uint32_t row = run * kRun + threadIdx.x / kVectors + r * kMLines;
        const bool past = static_cast<int>(row) >= part.rows;
        CopyAsync(part.m + row * kVectors + vector, buffer + (past ? 0 : part.At(row, vector)) * 16,
                  past);
      }
    }
  }
}

template <typename S, DType kType>
__device__ Vector<kType> VectorOf(const uint4* rows, uint32_t row, uint32_t vector) {
  Vector<kType> x;
#pragma unroll
  for (uint32_t q = 0; q < S::kQuads; ++q) {
    const uint4 quad = rows[row * S::kRowQuads + S::Place(row, vector * S::kQuads + q)];
    x.word[4 * q] = quad.x, x.word[4 * q + 1] = quad.y;
    x.word[4 * q + 2] = quad.z, x.word[4 * q + 3] = quad.w;
  }
  return x;
}

__device__ Vector<DType::kBf16> BufferOf(const Part& part, uint32_t row, uint32_t vector) {
  const uint4 quad = part.m[row * kVectors + vector];
  return {{quad.x, quad.y, quad.z, quad.w}};
}

// The block's maxima, to all blocks of the cluster, itself among them.
template <typename S, DType kType, bool kDelta, typename Scratch>
__device__ void SendMaxima(const Part& part, Scratch* shared) {
  using Most = Largest<kType, kDelta>;
  constexpr int kMost = Most::kWords / 4;  // quads of a vector
  constexpr uint32_t kSent = kVectors * kMost, kLines = S::kThreads / kVectors;
  static_assert(kSent * kMaxCluster <= S::kThreads);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, vector = lane % kVectors;
  Most own;
  for (int run = 0; run < part.runs; ++run) {
#pragma unroll
    for (uint32_t r = 0; r < kRun / kLines; ++r) {
      const uint32_t row = run * kRun + threadIdx.x / kVectors + r * kLines;
      Vector<DType::kBf16> m;
      if constexpr (kDelta) m = BufferOf(part, row, vector);
      own.Add(VectorOf<S, kType>(part.a, row, vector), m);
    }
  }
  own.Exchange(8);
  own.Exchange(16);
  if (lane < kVectors) {
#pragma unroll
    for (int q = 0; q < kMost; ++q)
      shared->warp_max[warp][lane * kMost + q] = make_uint4(
          own.word[4 * q], own.word[4 * q + 1], own.word[4 * q + 2], own.word[4 * q + 3]);
  }
  __syncthreads();
  WaitForCluster();
  const uint32_t quad = threadIdx.x % kSent, rank = threadIdx.x / kSent;
  if (rank >= ClusterBlocks()) return;
  uint4 most = shared->warp_max[0][quad];
#pragma unroll
  for (uint32_t w = 1; w < S::kThreads / 32; ++w) {
    const uint4 other = shared->warp_max[w][quad];
    most = make_uint4(Most::Larger(most.x, other.x), Most::Larger(most.y, other.y),
                      Most::Larger(most.z, other.z), Most::Larger(most.w, other.w));
  }
  SendTo(rank, &shared->block_max[ClusterRank()][quad], &shared->arrived, most);
}

// What the first 64 threads make of the maxima; the cluster's first block writes the scales.
// Returns what then is known of the strip.
template <typename Most, bool kDelta, typename Scratch>
__device__ Known FindScales(const Launch<EncodeJob>& launch, const EncodeJob& job, uint32_t strip,
                            Scratch* shared) {
  const uint32_t channel = threadIdx.x;
  if (channel < kStrip) {
    WaitForBytes(&shared->arrived);
    uint32_t most = 0;
#pragma unroll
    for (uint32_t r = 0; r < kMaxCluster; ++r) {
      if (r >= ClusterBlocks()) continue;
      const uint32_t* row = reinterpret_cast<const uint32_t*>(shared->block_max[r]);
      most = Most::Larger(most, row[Most::kPacked ? channel / 2 : channel]);
    }
    if (Most::kPacked) most = channel % 2 == 0 ? most & 0xffffu : most >> 16;
    const uint16_t scale = DeviceScaleOfBits(Most::Bits(most));
    shared->inverse[channel] = DeviceInverse(launch.levels, scale);
    if (kDelta) shared->step[channel] = DeviceStep(launch.levels, launch.step_factor, scale);
    const bool odd = __any_sync(~0u, IsOdd(scale));
    if (channel % 32 == 0) shared->any_odd[channel / 32] = odd;
    if (scale == kScaleNan) *job.not_finite = 1;
    if (ClusterRank() == 0) reinterpret_cast<uint16_t*>(job.body)[strip * kStrip + channel] = scale;
  }
  __syncthreads();
  if (shared->any_odd[0] != 0 || shared->any_odd[1] != 0) return Known::kNothing;
  return launch.levels.symmetric ? Known::kOrdinary : Known::kAsymmetric;
}

// A run's codes, one vector a thread, and m'. Whole fields go straight to memory.
template <typename S, DType kType, bool kDelta, int kBits, Known kKnown, typename Scratch>
__device__ void CodeVectors(const Levels& levels, const EncodeJob& job, uint8_t* codes,
                            const Part& part, int run, const Scratch& shared) {
  const uint32_t vector = threadIdx.x % kVectors, line = threadIdx.x / kVectors;
  float inverse[8], step[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    inverse[i] = shared.inverse[vector * 8 + i];
    step[i] = kDelta ? shared.step[vector * 8 + i] : 0.0f;
  }
#pragma unroll(kKnown == Known::kNothing ? 1 : kRun / S::kLines)
  for (uint32_t r = 0; r < kRun / S::kLines; ++r) {
    const uint32_t in_run = line + r * S::kLines, row = run * kRun + in_run;
    Vector<DType::kBf16> m;
    if constexpr (kDelta) m = BufferOf(part, row, vector);
    uint32_t high, low;
    QuantizeVector<kBits, kDelta, kKnown, true>(levels, VectorOf<S, kType>(part.a, row, vector), &m,
                                                inverse, step, &high, &low);
    if constexpr (!IsWhole(kBits))
      StoreField<kBits>(high, low, part.fields + (in_run * kVectors + vector) * kBits);
    if (static_cast<int>(row) >= part.rows) continue;
    const uint32_t at = part.At(row, vector);
    if constexpr (IsWhole(kBits)) StoreField<kBits>(high, low, codes + at * kBits);
    if constexpr (kDelta) m.Store(reinterpret_cast<uint8_t*>(job.m) + at * 16);
  }
}

// The same, two vectors a thread.
template <typename S, DType kType, int kBits, Known kKnown, typename Scratch>
__device__ void CodePairs(const Levels& levels, uint8_t* codes, const Part& part, int run,
                          const Scratch& shared) {
  const uint32_t pair = threadIdx.x % S::kTeam, line = threadIdx.x / S::kTeam;
  float inverse[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) inverse[i] = shared.inverse[pair * 16 + i];
#pragma unroll(kKnown == Known::kNothing ? 1 : kRun / S::kLines)
  for (uint32_t r = 0; r < kRun / S::kLines; ++r) {
    const uint32_t in_run = line + r * S::kLines, row = run * kRun + in_run;
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Vector<DType::kBf16> none;
      QuantizeVector<kBits, false, kKnown, true>(
          levels, VectorOf<S, kType>(part.a, row, pair * 2 + i), &none, inverse + 8 * i, nullptr,
          &high[i], &low[i]);
    }
    const bool real = static_cast<int>(row) < part.rows;
    if constexpr (S::kFields) {
      StoreOddPair<kBits>(high, low, part.fields + (in_run * kVectors + pair * 2) * kBits);
    } else if constexpr (kBits == 3) {
      StoreRowOfThrees(high, low, pair, real, codes + part.At(row, 0) * kBits);
    } else if (real) {
      StorePair<kBits>(high, low, codes + part.At(row, pair * 2) * kBits);
    }
  }
}

// A warp's fields of a run to memory, as words of 8 bytes: a row has kBits of them.
template <typename S, int kBits>
__device__ void CopyFields(uint8_t* codes, const Part& part, int run) {
  constexpr uint32_t kWarpRows = 32 / S::kTeam;  // neighbours, every S::kLines rows
  constexpr uint32_t kWords = kRun / S::kLines * kWarpRows * kBits;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (uint32_t word = lane; word < kWords; word += 32) {
    const uint32_t of_row = word % kBits, line = word / kBits;
    const uint32_t in_run = line / kWarpRows * S::kLines + warp * kWarpRows + line % kWarpRows;
    const uint32_t row = run * kRun + in_run;
    const uint64_t x = reinterpret_cast<const uint64_t*>(part.fields)[in_run * kBits + of_row];
    if (static_cast<int>(row) < part.rows)
      *reinterpret_cast<uint64_t*>(codes + part.At(row, 0) * kBits + of_row * 8) = x;
  }
  __syncwarp();
}

// Grid: blocks of a cluster x strips x samples.
template <DType kType, bool kDelta, int kBits>
__global__ void __launch_bounds__(Shape<kType, kDelta, kBits>::kThreads,
                                  Shape<kType, kDelta, kBits>::kBlocks)
    ChannelKernel(const __grid_constant__ Launch<EncodeJob> launch, const int runs) {
  using S = Coding<kType, kDelta, kBits>;
  using Most = Largest<kType, kDelta>;
  __shared__ ChannelScratch<S::kThreads> shared;
  extern __shared__ __align__(128) uint8_t memory[];  // else each copy of a row counts twice
  OpenBarrier(&shared.arrived, ClusterBlocks() * kVectors * 4 * Most::kWords);
  const EncodeJob& job = launch.jobs[blockIdx.z];
  Part part;
  part.strip = blockIdx.y, part.runs = runs;
  part.first = blockIdx.x * runs * kRun;
  part.row_vectors = static_cast<uint32_t>(launch.hidden / 8);
  part.rows = static_cast<int>(launch.positions) - static_cast<int>(part.first);
  part.a = reinterpret_cast<uint4*>(memory);
  part.m = part.a + runs * kRun * S::kRowQuads;
  part.fields = reinterpret_cast<uint8_t*>(part.m + (kDelta ? runs * kRun * kVectors : 0));
  Load<S, kDelta>(job, part);
  WaitForCopies();
  if constexpr (kType == DType::kF32) __syncthreads();  // a thread reads what others copied
  SendMaxima<S, kType, kDelta>(part, &shared);
  const Known known = FindScales<Most, kDelta>(launch, job, part.strip, &shared);

  uint8_t* codes = job.body + launch.codes_at;
  const auto code = [&](auto what) {
    constexpr Known kKnown = decltype(what)::value;
    for (int run = 0; run < runs; ++run) {
      if constexpr (S::kPairs) {
        CodePairs<S, kType, kBits, kKnown>(launch.levels, codes, part, run, shared);
      } else {
        CodeVectors<S, kType, kDelta, kBits, kKnown>(launch.levels, job, codes, part, run, shared);
      }
      if constexpr (S::kFields) CopyFields<S, kBits>(codes, part, run);
    }
  };
  if (known == Known::kAsymmetric) {
    code(std::integral_constant<Known, Known::kAsymmetric>());
  } else if (known == Known::kOrdinary) {
    code(std::integral_constant<Known, Known::kOrdinary>());
  } else {
    code(std::integral_constant<Known, Known::kNothing>());
  }
}
#else
template <DType kType, bool kDelta, int kBits>
__global__ void __launch_bounds__(Shape<kType, kDelta, kBits>::kThreads,
                                  Shape<kType, kDelta, kBits>::kBlocks)
    ChannelKernel(const __grid_constant__ Launch<EncodeJob> launch, const int runs) {
  __trap();  // never launched: ChannelFits says no on devices without clusters
}
#endif

template <DType kType, bool kDelta, int kBits>
Error RunBits(const Launch<EncodeJob>& launch, int count, Stream stream) {
  using S = Shape<kType, kDelta, kBits>;
  const auto kernel = ChannelKernel<kType, kDelta, kBits>;
  const int64_t most = kMaxCluster * kRun;
  const int runs = static_cast<int>((launch.positions + most - 1) / most);
  const int64_t rows = int64_t{runs} * kRun;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>((launch.positions + rows - 1) / rows), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(attribute.val.clusterDim.x, static_cast<unsigned>(launch.hidden / kStrip),
                        static_cast<unsigned>(count));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes =
      static_cast<size_t>(rows) * (S::kRowQuads + (kDelta ? kVectors : 0)) * 16 + S::kFieldBytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaError_t error = cudaSuccess;
  if (config.dynamicSmemBytes > kUsualShared)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(config.dynamicSmemBytes));
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, kernel, launch, runs);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <DType kType, bool kDelta>
Error Run(const Launch<EncodeJob>& launch, int count, Stream stream) {
  return ForBits(launch.levels.bits, [&](auto bits) {
    return RunBits<kType, kDelta, decltype(bits)::value>(launch, count, stream);
  });
}

}  // namespace

bool ChannelFits(const Matrix& matrix) {
  return matrix.hidden > 0 && matrix.hidden % kStrip == 0 && matrix.hidden / kStrip <= 65535 &&
         matrix.positions > 0 && matrix.positions <= kMaxPositions &&
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
