#include <cuda_runtime.h>

#include <algorithm>

#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/elementwise.h"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;

// Calls f(i) for each i < n.
template <typename F>
__global__ void EachKernel(int64_t n, F f) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
    f(i);
}

template <typename F>
Error ForEach(int64_t n, Stream stream, F f) {
  if (n == 0) return nullptr;
  const int64_t blocks = std::min<int64_t>((n + kThreads - 1) / kThreads, 65536);
  EachKernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(n,
                                                                                                f);
  return LastError();
}

struct ResidualSum {
  const void* x;
  DType dtype;
  const float* e;
  float* t;
  __device__ void operator()(int64_t i) const {
    const float value = ElementAt(x, dtype, i);
    t[i] = KeepNan(value, __fadd_rn(value, e[i]));
  }
};

struct Residual {
  const float *t, *r;
  float* e;
  __device__ void operator()(int64_t i) const {
    const float left = __fsub_rn(t[i], r[i]);
    e[i] = Magnitude(left) < 0x7f800000u ? left : 0.0f;
  }
};

struct Difference {
  const void* a;
  DType dtype;
  const uint16_t* m;
  float* d;
  __device__ void operator()(int64_t i) const {
    const float value = ElementAt(a, dtype, i);
    d[i] = KeepNan(value, __fsub_rn(value, Bf16Bits(m[i])));
  }
};

struct Update {
  const float* d;
  uint16_t* m;
  DType dtype;
  void* out;
  uint32_t* not_finite;
  __device__ void operator()(int64_t i) const {
    const float sum = KeepNan(d[i], __fadd_rn(Bf16Bits(m[i]), d[i]));
    const uint16_t kept = RoundTo(DType::kBf16, sum);
    m[i] = kept;
    if (out != nullptr) StoreElement(out, dtype, i, sum);
    if (not_finite != nullptr && (kept & 0x7fffu) >= 0x7f80u) *not_finite = 1;
  }
};

}  // namespace

Error AddResidual(const void* x, DType dtype, const float* e, int64_t n, float* t, Stream stream) {
  return ForEach(n, stream, ResidualSum{x, dtype, e, t});
}

Error KeepResidual(const float* t, const float* r, int64_t n, float* e, Stream stream) {
  return ForEach(n, stream, Residual{t, r, e});
}

Error SubtractBuffer(const void* a, DType dtype, const uint16_t* m, int64_t n, float* d,
                     Stream stream) {
  return ForEach(n, stream, Difference{a, dtype, m, d});
}

Error AddToBuffer(const float* d, int64_t n, uint16_t* m, DType dtype, void* out,
                  uint32_t* not_finite, Stream stream) {
  return ForEach(n, stream, Update{d, m, dtype, out, not_finite});
}

}  // namespace isthmus::compress::cuda
