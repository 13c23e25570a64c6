#include "compress/simd/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/simd/quantize.cc"
#include "hwy/foreach_target.h"  // compiles this file once a target
// After foreach_target.h:
#include "compress/simd/quantize-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::compress::HWY_NAMESPACE {

void MaxBitsInto(const float* x, size_t n, uint32_t* max_bits) {
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    MaxInto(hn::LoadU(Df(), x + i), max_bits + i);
  }
  for (; i < n; ++i) max_bits[i] = std::max(max_bits[i], FloatBits(x[i]) & 0x7fffffffu);
}

uint32_t MaxBits(const float* x, size_t n) {
  return MaxBitsOf(
      n, [x](size_t i) HWY_ATTR { return hn::LoadU(Df(), x + i); }, [x](size_t i) { return x[i]; });
}

void MaxBitsOfGroups(const float* x, size_t n, size_t group, uint32_t* max_bits) {
  for (size_t at = 0; at < n; at += group, ++max_bits)
    *max_bits = MaxBits(x + at, std::min(group, n - at));
}

template <bool kSymmetric, class Scales>
HWY_INLINE void QuantizeSpan(const Levels& levels, const float* x, const Scales& inverse, size_t n,
                             uint8_t* codes) {
  const Constants c(levels);
  const auto nearest = [&](size_t i) HWY_ATTR {
    return Nearest<kSymmetric>(c, hn::LoadU(Df(), x + i), inverse.At(i));
  };
  size_t i = StoreNearest(c, n, nearest, codes);
  for (; i < n; ++i) codes[i] = QuantizeOne(levels, x[i], inverse.One(i));
}

template <bool kSymmetric, class Scales>
HWY_INLINE void DequantizeSpan(const Levels& levels, const uint8_t* codes, const Scales& step,
                               size_t n, float* x) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(Values<kSymmetric>(c, LoadCodes(c, codes + i), step.At(i)), Df(), x + i);
  for (; i < n; ++i) x[i] = DequantizeOne(levels, codes[i], step.One(i));
}

template <bool kSymmetric>
void QuantizeRowT(const Levels& levels, const float* x, RowScales inverse, size_t n,
                  uint8_t* codes) {
  if (inverse.group == 1)
    return QuantizeSpan<kSymmetric>(levels, x, OwnScales(inverse.values), n, codes);
  for (size_t at = 0; at < n; at += inverse.group, ++inverse.values) {
    QuantizeSpan<kSymmetric>(levels, x + at, OneScale(inverse.values),
                             std::min(inverse.group, n - at), codes + at);
  }
}

template <bool kSymmetric>
void DequantizeRowT(const Levels& levels, const uint8_t* codes, RowScales step, size_t n,
                    float* x) {
  if (step.group == 1)
    return DequantizeSpan<kSymmetric>(levels, codes, OwnScales(step.values), n, x);
  for (size_t at = 0; at < n; at += step.group, ++step.values) {
    DequantizeSpan<kSymmetric>(levels, codes + at, OneScale(step.values),
                               std::min(step.group, n - at), x + at);
  }
}

void QuantizeRow(const Levels& levels, const float* x, RowScales inverse, size_t n,
                 uint8_t* codes) {
  levels.symmetric ? QuantizeRowT<true>(levels, x, inverse, n, codes)
                   : QuantizeRowT<false>(levels, x, inverse, n, codes);
}

void DequantizeRow(const Levels& levels, const uint8_t* codes, RowScales step, size_t n, float* x) {
  levels.symmetric ? DequantizeRowT<true>(levels, codes, step, n, x)
                   : DequantizeRowT<false>(levels, codes, step, n, x);
}

}  // namespace isthmus::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::compress {

HWY_EXPORT(MaxBitsInto);
HWY_EXPORT(MaxBits);
HWY_EXPORT(MaxBitsOfGroups);
HWY_EXPORT(QuantizeRow);
HWY_EXPORT(DequantizeRow);

Levels::Levels(int b, bool sym) : bits(b), symmetric(sym) {
  if (symmetric) {
    top = static_cast<float>((1 << bits) - 1);
    bias = top * 0.5f;
    low = 0;
    high = top;
    offset = 0;
    code_factor = 2;
  } else {
    top = static_cast<float>(1 << (bits - 1));
    bias = 0;
    low = -top;
    high = top - 1;
    offset = 1 << (bits - 1);
    code_factor = 1;
  }
  code_shift = top;
}

float Levels::Inverse(uint16_t scale) const {
  if (scale == 0 || scale == kScaleNan) return 0;
  const float ratio = top / Bf16ToFloat(scale);
  return symmetric ? ratio * 0.5f : ratio;
}

float Levels::Step(uint16_t scale) const { return Bf16ToFloat(scale) / top; }

uint16_t ScaleOfBits(uint32_t max_bits) {
  if (max_bits >= 0x7f800000u) return kScaleNan;
  if (max_bits < uint32_t{kScaleMin} << 16) return 0;
  if (max_bits > uint32_t{kScaleMax} << 16) return kScaleMax;
  return static_cast<uint16_t>((max_bits + 0xffffu) >> 16);
}

uint16_t ScaleOfRms(uint32_t max_bits, float sum_sq, size_t n) {
  if (max_bits >= 0x7f800000u) return kScaleNan;
  if (n == 0) return 0;
  const float rms = std::sqrt(sum_sq / static_cast<float>(n));
  return ScaleOfBits(std::min(FloatBits(2.0f * rms), 0x7f7fffffu));
}

uint16_t ScaleOfMean(uint32_t max_bits, float sum, size_t n) {
  if (max_bits >= 0x7f800000u) return kScaleNan;
  if (n == 0) return 0;
  return ScaleOfBits(std::min(FloatBits(sum / static_cast<float>(n)), 0x7f7fffffu));
}

void MaxBitsInto(const float* x, size_t n, uint32_t* max_bits) {
  HWY_DYNAMIC_DISPATCH(MaxBitsInto)(x, n, max_bits);
}
uint32_t MaxBits(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(MaxBits)(x, n); }

void MaxBitsOfGroups(const float* x, size_t n, size_t group, uint32_t* max_bits) {
  HWY_DYNAMIC_DISPATCH(MaxBitsOfGroups)(x, n, group, max_bits);
}

template <typename F>
float OrderedSum(size_t n, F term) {
  float sums[16] = {0};
  for (size_t i = 0; i < n; ++i) sums[i % 16] += term(i);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

float SumOfSquares(const float* x, size_t n) {
  return OrderedSum(n, [x](size_t i) { return x[i] * x[i]; });
}

float SumOfMagnitudes(const float* x, size_t n) {
  return OrderedSum(n, [x](size_t i) { return std::fabs(x[i]); });
}

void QuantizeRow(const Levels& levels, const float* x, RowScales inverse, size_t n,
                 uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(levels, x, inverse, n, codes);
}

void QuantizeRowStochastic(const Levels& levels, const float* x, RowScales inverse, size_t n,
                           uint64_t seed, uint64_t draw, uint64_t first, uint8_t* codes) {
  for (size_t i = 0; i < n; ++i) {
    const float u = static_cast<float>(RandomBits(seed, draw, first + i) >> 40) * 0x1p-24f;
    const float y = std::floor(x[i] * inverse.values[i / inverse.group] + levels.bias + u);
    codes[i] = static_cast<uint8_t>(
        static_cast<int32_t>(std::min(std::max(y, levels.low), levels.high)) + levels.offset);
  }
}

void DequantizeRow(const Levels& levels, const uint8_t* codes, RowScales step, size_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(DequantizeRow)(levels, codes, step, n, x);
}

}  // namespace isthmus::compress
#endif  // HWY_ONCE
