// Loss and gradient of a row of logits by one thread block, in place. Two passes over the row; the
// second finds it in the second-level cache, so that device memory sees each logit read and written
// once.
#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels.h"
#include "worker/engine/cuda/launch.cuh"

namespace isthmus::engine {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// A run of logits of 16 bytes, or a single one where rows are not aligned to that.
template <typename T, int kElements>
struct alignas(sizeof(T) * kElements) Run {
  T at[kElements];
};

__device__ inline float Value(float x) { return x; }
__device__ inline float Value(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void Put(float* to, float x) { *to = x; }
__device__ inline void Put(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// The largest logit so far, and the sum of exp(logit - largest).
struct Sum {
  float largest, sum;
};

__device__ inline Sum Merge(Sum a, Sum b) {
  if (a.largest < b.largest) {
    const Sum swap = a;
    a = b;
    b = swap;
  }
  // Of an empty part: the sum is 0, and so is the factor.
  if (b.largest > -INFINITY) a.sum += b.sum * __expf(b.largest - a.largest);
  return a;
}

__device__ Sum MergeBlock(Sum mine) {
  __shared__ Sum of_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2) {
    const Sum other = {__shfl_xor_sync(~0u, mine.largest, offset),
                       __shfl_xor_sync(~0u, mine.sum, offset)};
    mine = Merge(mine, other);
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  Sum all = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) all = Merge(all, of_warp[warp]);
  return all;
}

template <typename T, int kElements>
__global__ void __launch_bounds__(kThreads)
    CrossEntropy(T* logits, const int64_t* __restrict__ targets, float* __restrict__ losses,
                 int64_t vocabulary, float scale, bool gradient) {
  using R = Run<T, kElements>;
  T* const row = logits + blockIdx.x * vocabulary;
  R* const runs = reinterpret_cast<R*>(row);
  const int n = static_cast<int>(vocabulary / kElements);
  const int target = static_cast<int>(targets[blockIdx.x]);
  Sum mine = {-INFINITY, 0};
  bool nan = false;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const R run = runs[i];
    float largest = -INFINITY;
    for (int k = 0; k < kElements; ++k) {
      const float x = Value(run.at[k]);
      nan |= x != x;
      largest = fmaxf(largest, x);
    }
    if (largest == -INFINITY) continue;
    if (largest > mine.largest) {
      mine.sum *= __expf(mine.largest - largest);
      mine.largest = largest;
    }
    for (int k = 0; k < kElements; ++k) mine.sum += __expf(Value(run.at[k]) - mine.largest);
  }
  if (nan) mine = {INFINITY, NAN};  // it stays what it is in every merge
  const Sum all = MergeBlock(mine);
  const float at_target = Value(row[target]);
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(all.sum) + all.largest - at_target;
  if (!gradient) return;
  __syncthreads();  // all have read the target's logit
  const float factor = scale / all.sum;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    R run = runs[i];
    for (int k = 0; k < kElements; ++k) {
      float g = factor * __expf(Value(run.at[k]) - all.largest);
      if (i * kElements + k == target) g -= scale;
      Put(&run.at[k], g);
    }
    runs[i] = run;
  }
}

template <typename T>
void Launch(cudaStream_t stream, void* logits, const int64_t* targets, float* losses, int64_t rows,
            int64_t vocabulary, float scale, bool gradient) {
  constexpr int kElements = 16 / sizeof(T);
  const unsigned blocks = static_cast<unsigned>(rows);
  T* const data = static_cast<T*>(logits);
  if (vocabulary % kElements == 0) {
    CrossEntropy<T, kElements>
        <<<blocks, kThreads, 0, stream>>>(data, targets, losses, vocabulary, scale, gradient);
  } else {
    CrossEntropy<T, 1>
        <<<blocks, kThreads, 0, stream>>>(data, targets, losses, vocabulary, scale, gradient);
  }
}

}  // namespace

const char* CrossEntropyKernel(const Queue& on, void* logits, bool bf16, const int64_t* targets,
                               float* losses, int64_t rows, int64_t vocabulary, float scale,
                               bool gradient) {
  if (rows == 0) return nullptr;
  const OnDevice current(on.device);
  if (bf16) {
    Launch<__nv_bfloat16>(StreamOf(on), logits, targets, losses, rows, vocabulary, scale, gradient);
  } else {
    Launch<float>(StreamOf(on), logits, targets, losses, rows, vocabulary, scale, gradient);
  }
  return LastError();
}

}  // namespace isthmus::engine
