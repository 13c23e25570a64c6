// One element of any dtype to fp32 and back, with the NaNs that the CPU makes
// (compress/simd/convert.h). Thread: device functions.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_ELEMENT_CUH_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "compress/dtype.h"

namespace isthmus::compress::cuda {

__device__ inline float Bf16Bits(uint32_t x) { return __uint_as_float(x << 16); }
__device__ inline uint32_t Magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ inline float ElementAt(const void* a, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(a)[i];
  const uint16_t x = static_cast<const uint16_t*>(a)[i];
  if (dtype == DType::kBf16) return Bf16Bits(x);
  if ((x & 0x7fffu) <= 0x7c00u) return __half2float(__ushort_as_half(x));
  return __uint_as_float((x & 0x8000u) << 16 | 0x7fc00000u | (x & 0x3ffu) << 13);  // NaN
}

// To a 16-bit type; nearest even.
__device__ inline uint16_t RoundTo(DType dtype, float x) {
  const uint32_t bits = __float_as_uint(x);
  const bool nan = Magnitude(x) > 0x7f800000u;
  if (dtype == DType::kBf16) {
    if (nan) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  }
  if (nan) return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
  return __half_as_ushort(__float2half_rn(x));
}

__device__ inline void StoreElement(void* to, DType dtype, int64_t i, float x) {
  if (dtype == DType::kF32) {
    static_cast<float*>(to)[i] = x;
  } else {
    static_cast<uint16_t*>(to)[i] = RoundTo(dtype, x);
  }
}

// Where `x` is a NaN: that, made quiet, as a CPU passes it through a sum or product. Else `result`.
__device__ inline float KeepNan(float x, float result) {
  return Magnitude(x) > 0x7f800000u ? __uint_as_float(__float_as_uint(x) | 0x400000u) : result;
}

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_ELEMENT_CUH_
