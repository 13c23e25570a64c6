#include <cuda_runtime.h>

#include <algorithm>

#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/quant_paths.cuh"
#include "compress/cuda/kernels/top_k.h"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kScanThreads = 1024;

struct TopKLaunch {
  TopKJob jobs[kMaxJobs];
  IndexFormat format;
  int64_t hidden, kept_of_row;
  DType dtype;
};

// ORs `count` bits of `value` into a bit string that counts from the most significant bit of each
// byte.
__device__ void OrBits(uint8_t* bytes, uint64_t at, uint32_t value, int count) {
  if (count == 0) return;
  uint32_t* word = reinterpret_cast<uint32_t*>(bytes) + at / 32;
  const uint64_t bits = static_cast<uint64_t>(value) << (64 - count - static_cast<int>(at % 32));
  atomicOr(word, __byte_perm(static_cast<uint32_t>(bits >> 32), 0, 0x0123));
  const uint32_t rest = static_cast<uint32_t>(bits);
  if (rest != 0) atomicOr(word + 1, __byte_perm(rest, 0, 0x0123));
}

__device__ void WriteIndex(const IndexFormat& f, uint8_t* packed, uint64_t rank, uint64_t index) {
  if (f.bitmap) return OrBits(packed, index, 1, 1);
  const uint32_t low = static_cast<uint32_t>(index) & ((1u << f.low_bits) - 1);
  OrBits(packed, rank * static_cast<uint64_t>(f.low_bits), low, f.low_bits);
  OrBits(packed + f.second_at, (index >> f.low_bits) + rank, 1, 1);
}

// How many of the row's magnitudes are at least `least`, for all threads. `counter` starts at 0.
__device__ int CountAtLeast(const uint32_t* row, int n, uint32_t least, int* counter) {
  int own = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) own += (row[i] & 0x7fffffffu) >= least;
  own = __reduce_add_sync(~0u, own);
  if (threadIdx.x % 32 == 0 && own != 0) atomicAdd(counter, own);
  __syncthreads();
  return *counter;
}

// The magnitude of the k-th largest, bit by bit from the top; `counters` are 32 zeros.
__device__ uint32_t KthLargest(const uint32_t* row, int n, int k, int lowest_bit, int* counters) {
  uint32_t least = 0;
  for (int bit = 30; bit >= lowest_bit; --bit) {
    const uint32_t trial = least | 1u << bit;
    if (CountAtLeast(row, n, trial, counters + bit) >= k) least = trial;
  }
  return least;
}

// Goes through n elements (bits(i), from `first` of the sample on) in order, and writes those over
// `least` and the first of those equal to it until `ties` were written. `above` and `equal`: how
// many came before. All threads of a block.
template <typename Bits>
__device__ void WriteKept(const IndexFormat& f, const TopKJob& job, int64_t first, int n,
                          uint32_t least, uint32_t ties, uint32_t above, uint32_t equal,
                          int64_t first_rank, Bits bits) {
  __shared__ uint32_t above_of_warp[2][kWarps], equal_of_warp[2][kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int start = 0, turn = 0; start < n; start += kThreads, turn ^= 1) {
    const int i = start + static_cast<int>(threadIdx.x);
    const uint32_t x = i < n ? bits(i) : 0, magnitude = x & 0x7fffffffu;
    const unsigned is_above = __ballot_sync(~0u, i < n && magnitude > least);
    const unsigned is_equal = __ballot_sync(~0u, i < n && magnitude == least);
    if (lane == 0) {
      above_of_warp[turn][warp] = __popc(is_above);
      equal_of_warp[turn][warp] = __popc(is_equal);
    }
    __syncthreads();
    uint32_t my_above = above + __popc(is_above & ((1u << lane) - 1));
    uint32_t my_equal = equal + __popc(is_equal & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) my_above += above_of_warp[turn][w], my_equal += equal_of_warp[turn][w];
      above += above_of_warp[turn][w], equal += equal_of_warp[turn][w];
    }
    const bool kept = (is_above >> lane & 1) || ((is_equal >> lane & 1) && my_equal < ties);
    if (!kept) continue;
    const int64_t rank = first_rank + my_above + min(my_equal, ties);
    job.values[rank] = __uint_as_float(x);
    WriteIndex(f, job.packed, static_cast<uint64_t>(rank), static_cast<uint64_t>(first + i));
  }
}

// A block selects from a row: finds the least magnitude kept, then goes through the row in order.
// Grid: rows x samples.
__global__ void __launch_bounds__(kThreads)
    SelectKernel(const __grid_constant__ TopKLaunch launch) {
  extern __shared__ uint32_t row[];
  __shared__ int counters[32];
  const TopKJob& job = launch.jobs[blockIdx.y];
  const int n = static_cast<int>(launch.hidden), k = static_cast<int>(launch.kept_of_row);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * launch.hidden;
  if (threadIdx.x < 32) counters[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < n; i += kThreads)
    row[i] = __float_as_uint(ElementAt(job.a, launch.dtype, first + i));
  __syncthreads();
  const int lowest_bit = launch.dtype == DType::kBf16 ? 16 : launch.dtype == DType::kF16 ? 13 : 0;
  const uint32_t least = KthLargest(row, n, k, lowest_bit, counters);
  const int ties = k - CountAtLeast(row, n, least + 1, counters + 31);
  WriteKept(launch.format, job, first, n, least, static_cast<uint32_t>(ties), 0, 0,
            blockIdx.x * launch.kept_of_row, [&](int i) { return row[i]; });
}

// The largest of a whole sample. The least magnitude kept is found from the top, some bits at a
// time: a histogram of those bits among the elements that agree so far, and the bin in which the
// k-th largest lies.
constexpr int kChunk = 16 * kThreads;  // elements of a block
constexpr int kPasses = 3;             // of 11 bits, 10 and 10
constexpr int kBins = 2 * kScanThreads;

__device__ int ShiftOf(int pass) { return pass == 0 ? 20 : pass == 1 ? 10 : 0; }

struct GlobalScratch {
  uint32_t least;  // known bits of it
  uint32_t left;   // of those that agree with it: how many are kept
  uint32_t bins[kPasses][kBins];
};

__device__ uint32_t BitsOf(const TopKJob& job, DType dtype, int64_t i) {
  return __float_as_uint(ElementAt(job.a, dtype, i));
}

// A block for each pass.
__global__ void StartKernel(uint32_t kept, GlobalScratch* global) {
  for (int b = threadIdx.x; b < kBins; b += kScanThreads) global->bins[blockIdx.x][b] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) global->least = 0, global->left = kept;
}

// Grid: chunks.
__global__ void __launch_bounds__(kThreads)
    BinsKernel(TopKJob job, DType dtype, int64_t n, int pass, GlobalScratch* global) {
  __shared__ uint32_t bins[kBins];
  for (int b = threadIdx.x; b < kBins; b += kThreads) bins[b] = 0;
  __syncthreads();
  const int shift = ShiftOf(pass), known = pass == 0 ? 31 : shift + 10;
  const uint32_t mask = pass == 0 ? kBins - 1 : 0x3ffu, least = global->least;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk;
  const int64_t end = min(first + kChunk, n);
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const uint32_t magnitude = BitsOf(job, dtype, i) & 0x7fffffffu;
    if (magnitude >> known == least >> known) atomicAdd(&bins[magnitude >> shift & mask], 1u);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kThreads) {
    if (bins[b] != 0) atomicAdd(&global->bins[pass][b], bins[b]);
  }
}

// Inclusive sums over the threads of a block of kScanThreads.
__device__ uint32_t ScanThreads(uint32_t own, uint32_t* sums) {
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int d = 1; d < kScanThreads; d *= 2) {
    const uint32_t before = static_cast<int>(threadIdx.x) >= d ? sums[threadIdx.x - d] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  return sums[threadIdx.x];
}

// One block; a thread has two bins, the largest come first.
__global__ void __launch_bounds__(kScanThreads) PickBinKernel(int pass, GlobalScratch* global) {
  __shared__ uint32_t sums[kScanThreads];
  const uint32_t bin = kBins - 1 - 2 * threadIdx.x, left = global->left;
  const uint32_t first = global->bins[pass][bin], second = global->bins[pass][bin - 1];
  const uint32_t through = ScanThreads(first + second, sums), before = through - first - second;
  if (before >= left || left > through) return;  // all threads have read what one writes
  const int shift = ShiftOf(pass);
  const bool in_first = left <= before + first;
  global->least |= (in_first ? bin : bin - 1) << shift;
  global->left = left - before - (in_first ? 0 : first);
}

// How many elements of a chunk are over the least kept, and how many equal to it. Grid: chunks.
__global__ void __launch_bounds__(kThreads)
    CountKernel(TopKJob job, DType dtype, int64_t n, const GlobalScratch* global, uint2* counts) {
  __shared__ uint32_t above, equal;
  if (threadIdx.x == 0) above = 0, equal = 0;
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk;
  const int64_t end = min(first + kChunk, n);
  uint32_t my_above = 0, my_equal = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const uint32_t magnitude = BitsOf(job, dtype, i) & 0x7fffffffu;
    my_above += magnitude > global->least;
    my_equal += magnitude == global->least;
  }
  my_above = __reduce_add_sync(~0u, my_above);
  my_equal = __reduce_add_sync(~0u, my_equal);
  if (threadIdx.x % 32 == 0) atomicAdd(&above, my_above), atomicAdd(&equal, my_equal);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = make_uint2(above, equal);
}

// One block: each count becomes the sum of those before it.
__global__ void __launch_bounds__(kScanThreads) SumCountsKernel(int64_t chunks, uint2* counts) {
  __shared__ uint32_t sums[kScanThreads];
  const int64_t run = (chunks + kScanThreads - 1) / kScanThreads;
  const int64_t begin = min(chunks, threadIdx.x * run), end = min(chunks, begin + run);
  uint32_t above = 0, equal = 0;
  for (int64_t c = begin; c < end; ++c) above += counts[c].x, equal += counts[c].y;
  above = ScanThreads(above, sums) - above;
  __syncthreads();
  equal = ScanThreads(equal, sums) - equal;
  for (int64_t c = begin; c < end; ++c) {
    const uint2 own = counts[c];
    counts[c] = make_uint2(above, equal);
    above += own.x, equal += own.y;
  }
}

// Grid: chunks.
__global__ void __launch_bounds__(kThreads)
    WriteChunkKernel(TopKJob job, DType dtype, IndexFormat f, const GlobalScratch* global,
                     const uint2* counts) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk;
  const uint2 before = counts[blockIdx.x];
  WriteKept(f, job, first, static_cast<int>(min(int64_t{kChunk}, f.n - first)), global->least,
            global->left, before.x, before.y, 0,
            [&](int i) { return BitsOf(job, dtype, first + i); });
}

__device__ uint32_t WordAt(const uint8_t* bytes, int64_t word) {
  return __byte_perm(reinterpret_cast<const uint32_t*>(bytes)[word], 0, 0x0123);
}

__device__ uint32_t LowBitsAt(const uint8_t* bytes, uint64_t at, int count) {
  if (count == 0) return 0;
  const int64_t word = static_cast<int64_t>(at / 32);
  const int skip = static_cast<int>(at % 32);
  const uint32_t second = skip + count > 32 ? WordAt(bytes, word + 1) : 0;
  return __funnelshift_l(second, WordAt(bytes, word), skip) >> (32 - count);
}

// One block: each thread counts the bits of its run of words, a scan over the threads says where
// its indices go.
__global__ void __launch_bounds__(kScanThreads)
    UnpackIndicesKernel(IndexFormat f, const uint8_t* packed, uint32_t* indices) {
  __shared__ uint32_t sums[kScanThreads];
  const uint8_t* bits = f.bitmap ? packed : packed + f.second_at;
  const int64_t words = ((f.bitmap ? f.first_bytes : f.second_bytes) + 3) / 4;
  const int64_t run = (words + kScanThreads - 1) / kScanThreads;
  const int64_t begin = min(words, threadIdx.x * run), end = min(words, begin + run);
  uint32_t own = 0;
  for (int64_t w = begin; w < end; ++w) own += __popc(WordAt(bits, w));
  int64_t rank = ScanThreads(own, sums) - own;
  for (int64_t w = begin; w < end; ++w) {
    for (uint32_t word = WordAt(bits, w); word != 0; ++rank) {
      const int bit = __clz(static_cast<int>(word));
      word &= ~(0x80000000u >> bit);
      if (rank >= f.kept) return;
      const uint64_t at = static_cast<uint64_t>(w * 32 + bit);
      indices[rank] =
          f.bitmap ? static_cast<uint32_t>(at)
                   : static_cast<uint32_t>((at - rank) << f.low_bits) |
                         LowBitsAt(packed, static_cast<uint64_t>(rank) * f.low_bits, f.low_bits);
    }
  }
}

__global__ void ScatterKernel(int64_t kept, const uint32_t* indices, const float* values,
                              DType dtype, void* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < kept) StoreElement(out, dtype, indices[i], values[i]);
}

}  // namespace

IndexFormat IndexFormatOf(int64_t n, int64_t kept) {
  IndexFormat f;
  f.n = n;
  f.kept = kept;
  if (kept == 0) return f;
  while (((kept << f.low_bits) << 1) <= n) ++f.low_bits;
  f.first_bytes = (kept * f.low_bits + 7) / 8;
  f.second_bytes = (kept + (n >> f.low_bits) + 1 + 7) / 8;
  f.bitmap = f.first_bytes + f.second_bytes >= (n + 7) / 8;
  if (f.bitmap) {
    f.first_bytes = (n + 7) / 8;
    f.second_bytes = 0;
  }
  f.second_at = (f.first_bytes + 15) / 16 * 16;
  return f;
}

Error TopKEncode(const Matrix& matrix, int64_t kept_of_row, DType dtype, const TopKJob* jobs,
                 int64_t count, Stream stream) {
  if (matrix.hidden > kMaxTopKHidden) return "topk: a token has too many channels for this kernel";
  if (matrix.elements() == 0 || kept_of_row == 0) return nullptr;
  TopKLaunch launch = {};
  launch.format = IndexFormatOf(matrix.elements(), matrix.positions * kept_of_row);
  launch.hidden = matrix.hidden;
  launch.kept_of_row = kept_of_row;
  launch.dtype = dtype;
  const int shared = static_cast<int>(4 * matrix.hidden);
  const cudaError_t error =
      cudaFuncSetAttribute(SelectKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  for (int64_t start = 0; start < count; start += kMaxJobs) {
    const int n = static_cast<int>(std::min<int64_t>(count - start, kMaxJobs));
    std::copy_n(jobs + start, n, launch.jobs);
    const dim3 grid(static_cast<unsigned>(matrix.positions), static_cast<unsigned>(n));
    SelectKernel<<<grid, kThreads, static_cast<size_t>(shared),
                   static_cast<cudaStream_t>(stream)>>>(launch);
    if (Error failed = LastError()) return failed;
  }
  return nullptr;
}

int64_t GlobalScratchBytes(int64_t n) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  return (static_cast<int64_t>(sizeof(GlobalScratch)) + 15) / 16 * 16 +
         chunks * static_cast<int64_t>(sizeof(uint2));
}

Error TopKEncodeGlobal(const IndexFormat& format, DType dtype, const TopKJob& job, void* scratch,
                       Stream stream) {
  if (format.kept == 0) return nullptr;
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  GlobalScratch* global = static_cast<GlobalScratch*>(scratch);
  uint2* counts = reinterpret_cast<uint2*>(static_cast<uint8_t*>(scratch) +
                                           (sizeof(GlobalScratch) + 15) / 16 * 16);
  const int64_t chunks = (format.n + kChunk - 1) / kChunk;
  const unsigned blocks = static_cast<unsigned>(chunks);
  StartKernel<<<kPasses, kScanThreads, 0, s>>>(static_cast<uint32_t>(format.kept), global);
  for (int pass = 0; pass < kPasses; ++pass) {
    BinsKernel<<<blocks, kThreads, 0, s>>>(job, dtype, format.n, pass, global);
    PickBinKernel<<<1, kScanThreads, 0, s>>>(pass, global);
  }
  CountKernel<<<blocks, kThreads, 0, s>>>(job, dtype, format.n, global, counts);
  SumCountsKernel<<<1, kScanThreads, 0, s>>>(chunks, counts);
  WriteChunkKernel<<<blocks, kThreads, 0, s>>>(job, dtype, format, global, counts);
  return LastError();
}

Error TopKDecode(const IndexFormat& format, const uint8_t* packed, const float* values,
                 uint32_t* indices, DType dtype, void* out, Stream stream) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      cudaMemsetAsync(out, 0, static_cast<size_t>(format.n) * DTypeBytes(dtype), s);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (format.kept == 0) return nullptr;
  UnpackIndicesKernel<<<1, kScanThreads, 0, s>>>(format, packed, indices);
  const unsigned blocks = static_cast<unsigned>((format.kept + kThreads - 1) / kThreads);
  ScatterKernel<<<blocks, kThreads, 0, s>>>(format.kept, indices, values, dtype, out);
  return LastError();
}

}  // namespace isthmus::compress::cuda
