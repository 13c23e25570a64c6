#include <cuda_runtime.h>

#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/predict.h"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;

// A block a position.
__global__ void PredictKernel(const MeanRows* rows, int64_t hidden, float* prediction) {
  const MeanRows row = rows[blockIdx.x];
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    float sum = __fadd_rn(row.token[i], row.position[i]);
    for (const float* context : row.context) {
      if (context != nullptr) sum = __fadd_rn(sum, context[i]);
    }
    prediction[blockIdx.x * hidden + i] = sum;
  }
}

// Two sums in double over a position, in the order of channels, as the CPU adds them: a lane takes
// a position, one warp the products, another the squares; all four warps fetch what they need.
constexpr int kGainRows = 32, kGainColumns = 32, kGainWarps = 4;

__global__ void __launch_bounds__(32 * kGainWarps)
    GainKernel(const void* x, DType dtype, const float* prediction, int64_t positions,
               int64_t hidden, float unit, uint8_t* gains) {
  __shared__ float tiles[2][kGainRows][kGainColumns + 1];  // of x, of the prediction
  __shared__ double squares[kGainRows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGainRows;
  double sum = 0;
  for (int64_t column = 0; column < hidden; column += kGainColumns) {
    const int columns = static_cast<int>(min(int64_t{kGainColumns}, hidden - column));
    __syncthreads();
    for (int r = warp; r < kGainRows; r += kGainWarps) {
      if (first + r >= positions || lane >= columns) continue;
      const int64_t at = (first + r) * hidden + column + lane;
      tiles[0][r][lane] = ElementAt(x, dtype, at);
      tiles[1][r][lane] = prediction[at];
    }
    __syncthreads();
    if (warp >= 2) continue;
    for (int c = 0; c < columns; ++c)  // a product of two floats is exact
      sum = __dadd_rn(sum, __dmul_rn(tiles[warp][lane][c], tiles[1][lane][c]));
  }
  if (warp == 1) squares[lane] = sum;
  __syncthreads();
  if (warp != 0 || first + lane >= positions) return;
  const double gain = __ddiv_rn(sum, __dmul_rn(squares[lane], unit));
  gains[first + lane] = gain > 0 ? static_cast<uint8_t>(round(gain < 255.0 ? gain : 255.0)) : 0;
}

// A block a position.
__global__ void ApplyKernel(const uint8_t* gains, float unit, int64_t hidden, float* prediction,
                            const void* x, DType dtype, float* difference) {
  const float gain = __fmul_rn(unit, static_cast<float>(gains[blockIdx.x]));
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    const int64_t at = blockIdx.x * hidden + i;
    const float predicted = __fmul_rn(prediction[at], gain);
    prediction[at] = predicted;
    if (x == nullptr) continue;
    const float value = ElementAt(x, dtype, at);
    difference[at] = KeepNan(value, __fsub_rn(value, predicted));
  }
}

// A block a position.
__global__ void RebuildKernel(RebuildJob job, int64_t hidden, DType dtype, uint32_t limit) {
  bool large = false;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    const int64_t at = blockIdx.x * hidden + i;
    const float y = KeepNan(job.d[at], __fadd_rn(job.prediction[at], job.d[at]));
    job.y[at] = y;
    if (job.out != nullptr) StoreElement(job.out, dtype, at, y);
    const uint16_t kept = RoundTo(DType::kBf16, y);
    if (job.m != nullptr) job.m[at] = kept;
    if (job.not_finite != nullptr && (kept & 0x7fffu) >= 0x7f80u) *job.not_finite = 1;
    large = large || Magnitude(y) > limit;
  }
  large = __syncthreads_or(large) != 0;
  if (threadIdx.x == 0) job.too_large[blockIdx.x] = large ? 1 : 0;
}

__device__ float TermOf(const MeanKey& key, const MeanRows& row, float y, int64_t i) {
  if (key.table == MeanOf::kToken) return __fsub_rn(y, row.position[i]);
  float left = __fsub_rn(y, __fadd_rn(row.token[i], row.position[i]));
  for (int l = 0; l < key.level; ++l) {
    if (row.context[l] != nullptr) left = __fsub_rn(left, row.context[l][i]);
  }
  return left;
}

// Grid: keys x runs of channels.
__global__ void SumKernel(const MeanKey* keys, const uint32_t* list, const MeanRows* rows,
                          const float* y, int64_t hidden, float* sums) {
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= hidden) return;
  const MeanKey key = keys[blockIdx.x];
  float sum = 0.0f;
  for (int32_t k = key.begin; k < key.end; ++k) {
    const int64_t at = list[k];
    sum = __fadd_rn(sum, TermOf(key, rows[at], y[at * hidden + i], i));
  }
  sums[blockIdx.x * hidden + i] = sum;
}

__global__ void AddSumsKernel(const float* sums, int64_t count, int64_t hidden, float* sum) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= hidden) return;
  float all = 0.0f;
  for (int64_t k = 0; k < count; ++k) all = __fadd_rn(all, sums[k * hidden + i]);
  sum[i] = all;
}

// Grid: moves x runs of channels.
__global__ void MoveKernel(const MeanMove* moves, int64_t hidden) {
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= hidden) return;
  const MeanMove move = moves[blockIdx.x];
  const float mean = move.mean[i], of_frame = __fdiv_rn(move.sum[i], move.count);
  const float way = move.drifts ? of_frame : __fsub_rn(of_frame, mean);
  move.mean[i] = __fadd_rn(mean, __fmul_rn(move.rate, way));
}

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

dim3 KeyGrid(int64_t keys, int64_t hidden) {
  return dim3(static_cast<unsigned>(keys), Blocks(hidden));
}

cudaStream_t AsStream(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

Error PredictRows(const MeanRows* rows, const Matrix& matrix, float* prediction, Stream stream) {
  if (matrix.elements() == 0) return nullptr;
  PredictKernel<<<static_cast<unsigned>(matrix.positions), kThreads, 0, AsStream(stream)>>>(
      rows, matrix.hidden, prediction);
  return LastError();
}

Error FindGains(const void* x, DType dtype, const float* prediction, const Matrix& matrix,
                float unit, uint8_t* gains, Stream stream) {
  if (matrix.positions == 0) return nullptr;
  const int64_t blocks = (matrix.positions + kGainRows - 1) / kGainRows;
  GainKernel<<<static_cast<unsigned>(blocks), 32 * kGainWarps, 0, AsStream(stream)>>>(
      x, dtype, prediction, matrix.positions, matrix.hidden, unit, gains);
  return LastError();
}

Error ApplyGains(const uint8_t* gains, float unit, const Matrix& matrix, float* prediction,
                 const void* x, DType dtype, float* difference, Stream stream) {
  if (matrix.elements() == 0) return nullptr;
  ApplyKernel<<<static_cast<unsigned>(matrix.positions), kThreads, 0, AsStream(stream)>>>(
      gains, unit, matrix.hidden, prediction, x, dtype, difference);
  return LastError();
}

Error RebuildRows(const RebuildJob& job, const Matrix& matrix, DType dtype, uint32_t limit,
                  Stream stream) {
  if (matrix.positions == 0) return nullptr;
  RebuildKernel<<<static_cast<unsigned>(matrix.positions), kThreads, 0, AsStream(stream)>>>(
      job, matrix.hidden, dtype, limit);
  return LastError();
}

Error SumKeys(const MeanKey* keys, int64_t count, const uint32_t* list, const MeanRows* rows,
              const float* y, int64_t hidden, float* sums, Stream stream) {
  if (count == 0 || hidden == 0) return nullptr;
  SumKernel<<<KeyGrid(count, hidden), kThreads, 0, AsStream(stream)>>>(keys, list, rows, y, hidden,
                                                                       sums);
  return LastError();
}

Error AddSums(const float* sums, int64_t count, int64_t hidden, float* sum, Stream stream) {
  if (hidden == 0) return nullptr;
  AddSumsKernel<<<Blocks(hidden), kThreads, 0, AsStream(stream)>>>(sums, count, hidden, sum);
  return LastError();
}

Error MoveMeans(const MeanMove* moves, int64_t count, int64_t hidden, Stream stream) {
  if (count == 0 || hidden == 0) return nullptr;
  MoveKernel<<<KeyGrid(count, hidden), kThreads, 0, AsStream(stream)>>>(moves, hidden);
  return LastError();
}

}  // namespace isthmus::compress::cuda
