// The quantiser's arithmetic on rows of fp32 (AQ-SGD, algorithm 1 of arXiv 2206.01299): scales,
// codes, and back.
//
//   levels of b bits        asymmetric (published)           symmetric
//   code c stands for       (c - L) * (s / L), L = 2^(b-1)   (2c - M) * (s / M), M = 2^b - 1
//   so the levels are       -s ... +s(1 - 1/L), with 0       -s ... +s, without 0
//
// A scale s is sent in two bytes as bfloat16, rounded up: the format's range holds the tiny
// gradients of a mean loss and the huge activations that some models have, where fp16 (as
// published) underflows or becomes inf; rounding up keeps every element within [-s, s]. For the
// same reason there is no epsilon: a scale of zero gives zero codes.
//
// Every operation below is one IEEE fp32 operation rounded to nearest even, in this order and never
// fused, so that any device can give the same bits:
//   inverse = L / s   or (M / s) * 0.5;     step = s / L or s / M
//   code    = int(round_half_even(clamp(x * inverse + bias, low, high))) + offset
//   value   = (float(code) * code_factor - code_shift) * step
// The maximum of a group is taken over the bits of |x| as integers: the order of elements does not
// matter, and NaN and inf win.
//
// Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_SIMD_QUANTIZE_H_
#define ISTHMUS_COMPRESS_SIMD_QUANTIZE_H_

#include <cstddef>
#include <cstdint>

namespace isthmus::compress {

struct Levels {
  Levels(int bits, bool symmetric);

  float Inverse(uint16_t scale) const;  // of a valid scale; 0 for a scale of 0 or NaN
  float Step(uint16_t scale) const;     // NaN for a NaN scale

  int bits;
  bool symmetric;
  float top;          // L or M
  float bias;         // 0 or M / 2
  float low, high;    // of x * inverse + bias
  int32_t offset;     // L or 0: the code of the level nearest zero, or none
  float code_factor;  // 1 or 2
  float code_shift;   // L or M
};

// Scales. Groups whose largest |x| is under 2^-100 are zero; over 2^100, the scale stays there and
// elements saturate.
inline constexpr uint16_t kScaleNan = 0x7fc0;  // the group holds a NaN or an inf; it decodes to NaN
inline constexpr uint16_t kScaleMin = 0x0d80;  // 2^-100
inline constexpr uint16_t kScaleMax = 0x7180;  // 2^100

uint16_t ScaleOfBits(uint32_t max_bits);                         // from the largest bits of |x|
uint16_t ScaleOfRms(uint32_t max_bits, float sum_sq, size_t n);  // 2 x RMS
uint16_t ScaleOfMean(uint32_t max_bits, float sum, size_t n);    // mean magnitude, for signs
inline bool IsValidScale(uint16_t s) {
  return s == 0 || s == kScaleNan || (s >= kScaleMin && s <= kScaleMax);
}

// max_bits[i] = max(max_bits[i], bits of |x[i]|).
void MaxBitsInto(const float* x, size_t n, uint32_t* max_bits);
// The largest bits of |x|; 0 for n = 0.
uint32_t MaxBits(const float* x, size_t n);

// max_bits[g] = the largest bits of the g-th `group` of x; the last group may be shorter.
void MaxBitsOfGroups(const float* x, size_t n, size_t group, uint32_t* max_bits);

// Sums in the order of 16 strided partial sums, added pairwise.
float SumOfSquares(const float* x, size_t n);
float SumOfMagnitudes(const float* x, size_t n);

// What the elements of a row are multiplied by: element i by values[i / group].
struct RowScales {
  const float* values;
  size_t group;
};

// Codes of a row. x must be finite where inverse is 0.
void QuantizeRow(const Levels& levels, const float* x, RowScales inverse, size_t n, uint8_t* codes);
// Stochastic: floor(y + u) with u uniform in [0, 1) from (seed, draw, first + i): unbiased inside
// the levels' range.
void QuantizeRowStochastic(const Levels& levels, const float* x, RowScales inverse, size_t n,
                           uint64_t seed, uint64_t draw, uint64_t first, uint8_t* codes);
void DequantizeRow(const Levels& levels, const uint8_t* codes, RowScales step, size_t n, float* x);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SIMD_QUANTIZE_H_
