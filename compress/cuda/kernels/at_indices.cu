#include <cuda_runtime.h>

#include "compress/cuda/kernels/at_indices.h"
#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void GatherKernel(Selected selected, const void* a, DType dtype, float* values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < selected.kept) values[i] = ElementAt(a, dtype, selected.indices[i]);
}

__device__ uint64_t RunStart(const Selected& selected, int64_t i) {
  return static_cast<uint64_t>(i) * static_cast<uint64_t>(selected.n) /
         static_cast<uint64_t>(selected.kept);
}

__global__ void ScatterKernel(Selected selected, const float* values, bool scaled, DType dtype,
                              void* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= selected.kept) return;
  float x = values[i];
  if (scaled) {
    const uint64_t length = RunStart(selected, i + 1) - RunStart(selected, i);
    x = KeepNan(x, __fmul_rn(x, static_cast<float>(length)));
  }
  StoreElement(out, dtype, selected.indices[i], x);
}

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

Error GatherAt(const Selected& selected, const void* a, DType dtype, float* values, Stream stream) {
  if (selected.kept == 0) return nullptr;
  GatherKernel<<<Blocks(selected.kept), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      selected, a, dtype, values);
  return LastError();
}

Error ScatterAt(const Selected& selected, const float* values, bool scaled, DType dtype, void* out,
                Stream stream) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  const cudaError_t error =
      cudaMemsetAsync(out, 0, static_cast<size_t>(selected.n) * DTypeBytes(dtype), s);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (selected.kept == 0) return nullptr;
  ScatterKernel<<<Blocks(selected.kept), kThreads, 0, s>>>(selected, values, scaled, dtype, out);
  return LastError();
}

}  // namespace isthmus::compress::cuda
