// Conversions between fp32 and the two 16-bit formats: rounding to nearest even, subnormals kept,
// NaN stays a (quiet) NaN, overflow is inf. Arrays go through Highway (run-time dispatch); the
// scalar functions are the reference and give the same bits.
//
// Thread: pure functions. Source and destination must not overlap.
#ifndef ISTHMUS_COMPRESS_SIMD_CONVERT_H_
#define ISTHMUS_COMPRESS_SIMD_CONVERT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/dtype.h"

namespace isthmus::compress {

inline uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float BitsToFloat(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float Bf16ToFloat(uint16_t x) { return BitsToFloat(uint32_t{x} << 16); }

inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float HalfToFloat(uint16_t x);
uint16_t FloatToHalf(float x);

void FloatsToBf16(const float* from, size_t n, uint16_t* to);
void Bf16ToFloats(const uint16_t* from, size_t n, float* to);
void FloatsToHalf(const float* from, size_t n, uint16_t* to);
void HalfToFloats(const uint16_t* from, size_t n, float* to);

// n elements of `dtype` at `from`, as fp32; and back.
void ToFloats(const void* from, DType dtype, size_t n, float* to);
void FromFloats(const float* from, size_t n, DType dtype, void* to);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SIMD_CONVERT_H_
