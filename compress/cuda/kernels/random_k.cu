#include <cuda_runtime.h>

#include "base/rng.h"
#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/quant_paths.cuh"
#include "compress/cuda/kernels/random_k.h"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;

__device__ uint64_t RunStart(const Runs& runs, uint64_t i) {
  return i * static_cast<uint64_t>(runs.n) / static_cast<uint64_t>(runs.kept);
}

// The index drawn in run i, and how long that run is.
__device__ uint64_t IndexIn(const Runs& runs, uint32_t draw, uint64_t i, uint64_t* length) {
  const uint64_t start = RunStart(runs, i);
  *length = RunStart(runs, i + 1) - start;
  return start + __umul64hi(RandomBits(runs.seed, draw, i), *length);  // RandomBelow
}

__global__ void GatherKernel(Runs runs, uint32_t draw, const void* a, DType dtype, uint32_t* drawn,
                             float* values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i == 0) *drawn = draw;
  if (i >= runs.kept) return;
  uint64_t length;
  values[i] = ElementAt(
      a, dtype, static_cast<int64_t>(IndexIn(runs, draw, static_cast<uint64_t>(i), &length)));
}

__global__ void ScatterKernel(Runs runs, const uint32_t* drawn, const float* values, DType dtype,
                              void* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= runs.kept) return;
  uint64_t length;
  const uint64_t index = IndexIn(runs, *drawn, static_cast<uint64_t>(i), &length);
  float x = values[i];
  if (runs.scaled) x = KeepNan(x, __fmul_rn(x, static_cast<float>(length)));
  StoreElement(out, dtype, static_cast<int64_t>(index), x);
}

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

Error RandomKEncode(const Runs& runs, uint32_t draw, const void* a, DType dtype, uint32_t* drawn,
                    float* values, Stream stream) {
  GatherKernel<<<Blocks(runs.kept + 1), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      runs, draw, a, dtype, drawn, values);
  return LastError();
}

Error RandomKDecode(const Runs& runs, const uint32_t* drawn, const float* values, DType dtype,
                    void* out, Stream stream) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      cudaMemsetAsync(out, 0, static_cast<size_t>(runs.n) * DTypeBytes(dtype), s);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (runs.kept == 0) return nullptr;
  ScatterKernel<<<Blocks(runs.kept), kThreads, 0, s>>>(runs, drawn, values, dtype, out);
  return LastError();
}

}  // namespace isthmus::compress::cuda
