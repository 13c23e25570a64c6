// none, bf16, fp16, and the key frames of delta coding.
#include <cuda_runtime.h>

#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/kernels.h"
#include "compress/cuda/kernels/quant_paths.cuh"

namespace isthmus::compress::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void PlainKernel(const void* a, DType a_type, int64_t n, DType wire_type, void* wire,
                            uint16_t* back, uint32_t* not_finite) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    float x = ElementAt(a, a_type, i);
    if (wire_type == DType::kF32) {
      if (wire != nullptr) static_cast<float*>(wire)[i] = x;
    } else {
      const uint16_t rounded = RoundTo(wire_type, x);
      if (wire != nullptr) static_cast<uint16_t*>(wire)[i] = rounded;
      x = ElementAt(&rounded, wire_type, 0);
    }
    if (back == nullptr && not_finite == nullptr) continue;
    const uint16_t kept = RoundTo(DType::kBf16, x);
    if (back != nullptr) back[i] = kept;
    if (not_finite != nullptr && (kept & 0x7fffu) >= 0x7f80u) *not_finite = 1;
  }
}

}  // namespace

Error PlainEncode(const void* a, DType a_type, int64_t n, DType wire_type, void* wire,
                  uint16_t* back, uint32_t* not_finite, Stream stream) {
  if (n == 0) return nullptr;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  const unsigned grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  PlainKernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a, a_type, n, wire_type,
                                                                        wire, back, not_finite);
  return LastError();
}

}  // namespace isthmus::compress::cuda
