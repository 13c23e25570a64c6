#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "base/rng.h"
#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/low_rank.h"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

Error CublasError(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasGetStatusString(status);
}

// Sum over the block, for all threads.
__device__ double BlockSum(double x, double* shared) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

__device__ double SquaredLength(const float* column, int64_t rows, double* shared) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) sum += double{column[i]} * column[i];
  return BlockSum(sum, shared);
}

struct OrthoScratch {
  double sums[kWarps];
  double along[LowRank::kMaxRank];
};

// The columns (each `rows` long, one after the other) become orthonormal: Gram-Schmidt, done twice
// for each column. One that depends on those before it, to rounding, becomes zero.
__device__ void Orthonormalize(float* a, int64_t rows, int columns, OrthoScratch* shared) {
  constexpr double kDependent = 1e-5;  // as compress/codecs/low_rank.cc
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int c = 0; c < columns; ++c) {
    float* column = a + c * rows;
    const double before = sqrt(SquaredLength(column, rows, shared->sums));
    for (int pass = 0; pass < 2; ++pass) {
      for (int k = warp; k < c; k += kWarps) {
        double dot = 0;
        for (int64_t i = lane; i < rows; i += 32) dot += double{column[i]} * a[k * rows + i];
        for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
        if (lane == 0) shared->along[k] = dot;
      }
      __syncthreads();
      for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
        double x = column[i];
        for (int k = 0; k < c; ++k) x -= shared->along[k] * a[k * rows + i];
        column[i] = static_cast<float>(x);
      }
      __syncthreads();
    }
    const double after = sqrt(SquaredLength(column, rows, shared->sums));
    const bool dependent = !(after > kDependent * before) || !(after > 1e-30);
    const double scale = dependent ? 0.0 : 1.0 / after;
    for (int64_t i = threadIdx.x; i < rows; i += kThreads)
      column[i] = dependent ? 0.0f : static_cast<float>(column[i] * scale);
    __syncthreads();
  }
}

// The last sample's Q made orthonormal, with random columns instead of those that vanished.
__global__ void __launch_bounds__(kThreads)
    WarmStartKernel(float* warm, int64_t rows, int columns, uint64_t seed, uint64_t* draws) {
  __shared__ OrthoScratch shared;
  Orthonormalize(warm, rows, columns, &shared);
  bool refreshed = false;
  for (int c = 0; c < columns; ++c) {
    if (SquaredLength(warm + c * rows, rows, shared.sums) > 0.5) continue;
    refreshed = true;
    const uint64_t draw = *draws + 1;
    __syncthreads();
    if (threadIdx.x == 0) *draws = draw;
    for (int64_t i = threadIdx.x; i < rows; i += kThreads)
      warm[c * rows + i] =
          static_cast<float>(RandomUniform(seed, draw, static_cast<uint64_t>(i)) - 0.5);
    __syncthreads();
  }
  if (refreshed) Orthonormalize(warm, rows, columns, &shared);
}

__global__ void FiniteKernel(const float* t, int64_t n, uint32_t* not_finite) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    if (Magnitude(t[i]) >= 0x7f800000u) *not_finite = 1;
  }
}

// Orthonormal columns, and as rows: NaN where the sample was not finite.
__global__ void __launch_bounds__(kThreads)
    LeftKernel(float* columns, int64_t rows, int count, const uint32_t* not_finite, float* left) {
  __shared__ OrthoScratch shared;
  const bool bad = *not_finite != 0;
  if (!bad) Orthonormalize(columns, rows, count, &shared);
  for (int64_t i = threadIdx.x; i < rows * count; i += kThreads) {
    const int64_t row = i / count, column = i % count;
    if (bad) columns[column * rows + row] = __uint_as_float(kQuietNan);
    left[i] = columns[column * rows + row];
  }
}

}  // namespace

// In one piece of memory, in this order.
struct LowRank::State {
  uint64_t* draws;
  uint32_t* not_finite;
  float* warm;     // Q: columns of `hidden`
  float* columns;  // P: columns of `positions`
};

LowRank::LowRank(const Matrix& matrix, int64_t rank, uint64_t seed)
    : matrix_(matrix), rank_(rank), seed_(seed) {}

LowRank::~LowRank() {
  if (cublas_ != nullptr) cublasDestroy(static_cast<cublasHandle_t>(cublas_));
}

int64_t LowRank::StateBytes() const {
  return WarmAt() + 4 * rank_ * (matrix_.hidden + matrix_.positions);
}

LowRank::State LowRank::Split(void* state) const {
  uint8_t* at = static_cast<uint8_t*>(state);
  float* warm = reinterpret_cast<float*>(at + WarmAt());
  return {reinterpret_cast<uint64_t*>(at), reinterpret_cast<uint32_t*>(at + 8), warm,
          warm + rank_ * matrix_.hidden};
}

Error LowRank::Open(Stream stream) {
  if (cublas_ == nullptr) {
    cublasHandle_t handle;
    if (Error error = CublasError(cublasCreate(&handle))) return error;
    cublas_ = handle;
  }
  return CublasError(
      cublasSetStream(static_cast<cublasHandle_t>(cublas_), static_cast<cudaStream_t>(stream)));
}

Error LowRank::Encode(const float* t, void* state, float* left, float* right, Stream stream) {
  if (rank_ == 0) return nullptr;
  if (Error error = Open(stream)) return error;
  const cublasHandle_t handle = static_cast<cublasHandle_t>(cublas_);
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  const State at = Split(state);
  const int positions = static_cast<int>(matrix_.positions);
  const int hidden = static_cast<int>(matrix_.hidden), rank = static_cast<int>(rank_);
  const float one = 1.0f, zero = 0.0f;
  WarmStartKernel<<<1, kThreads, 0, s>>>(at.warm, matrix_.hidden, rank, seed_, at.draws);
  const cudaError_t cleared = cudaMemsetAsync(at.not_finite, 0, 4, s);
  if (cleared != cudaSuccess) return cudaGetErrorString(cleared);
  FiniteKernel<<<512, kThreads, 0, s>>>(t, matrix_.elements(), at.not_finite);
  // To cuBLAS, which counts in columns, T is hidden x positions. P := T Q, then Q := T^T P.
  Error error =
      CublasError(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, positions, rank, hidden, &one, t,
                              hidden, at.warm, hidden, &zero, at.columns, positions));
  if (error != nullptr) return error;
  LeftKernel<<<1, kThreads, 0, s>>>(at.columns, matrix_.positions, rank, at.not_finite, left);
  error = CublasError(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, hidden, rank, positions, &one,
                                  t, hidden, at.columns, positions, &zero, right, hidden));
  if (error != nullptr) return error;
  const cudaError_t kept = cudaMemcpyAsync(
      at.warm, right, static_cast<size_t>(4 * rank_ * matrix_.hidden), cudaMemcpyDeviceToDevice, s);
  return kept == cudaSuccess ? LastError() : cudaGetErrorString(kept);
}

Error LowRank::Decode(const float* left, const float* right, float* out, Stream stream) {
  if (rank_ == 0) return nullptr;
  if (Error error = Open(stream)) return error;
  const int positions = static_cast<int>(matrix_.positions);
  const int hidden = static_cast<int>(matrix_.hidden), rank = static_cast<int>(rank_);
  const float one = 1.0f, zero = 0.0f;
  return CublasError(cublasSgemm(static_cast<cublasHandle_t>(cublas_), CUBLAS_OP_N, CUBLAS_OP_N,
                                 hidden, positions, rank, &one, right, hidden, left, rank, &zero,
                                 out, hidden));
}

}  // namespace isthmus::compress::cuda
