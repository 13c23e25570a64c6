#include "compress/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "compress/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/quantize.cc"
#include "hwy/foreach_target.h"  // compiles this file once a target
#include "hwy/highway.h"

#ifndef ISTHMUS_COMPRESS_QUANTIZE_SCALAR_
#define ISTHMUS_COMPRESS_QUANTIZE_SCALAR_
namespace isthmus::compress {

// One element, as the header defines it: the tails of the vector loops, and their reference.
inline uint8_t QuantizeOne(const Levels& l, float x, float inverse) {
  const float y = std::min(std::max(x * inverse + l.bias, l.low), l.high);
  return static_cast<uint8_t>(static_cast<int32_t>(std::nearbyintf(y)) + l.offset);
}

inline float DequantizeOne(const Levels& l, uint8_t code, float step) {
  return (static_cast<float>(code) * l.code_factor - l.code_shift) * step;
}

}  // namespace isthmus::compress
#endif

HWY_BEFORE_NAMESPACE();
namespace isthmus::compress::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Df = hn::ScalableTag<float>;
using Du = hn::RebindToUnsigned<Df>;
using Di = hn::RebindToSigned<Df>;
using D16 = hn::Rebind<uint16_t, Df>;
using D8 = hn::Rebind<uint8_t, Df>;
using Vf = hn::Vec<Df>;

constexpr float kRounder = 12582912.0f;  // 1.5 x 2^23
constexpr int32_t kRounderBits = 0x4b400000;

struct Constants {
  explicit Constants(const Levels& l)
      : bias(hn::Set(Df(), l.bias)),
        low(hn::Set(Df(), l.low)),
        high(hn::Set(Df(), l.high)),
        factor(hn::Set(Df(), l.code_factor)),
        shift(hn::Set(Df(), l.code_shift)),
        rounder(hn::Set(Df(), kRounder)),
        offset(hn::Set(Di(), l.offset)),
        rounder_bits(hn::Set(Di(), kRounderBits - l.offset)) {}
  Vf bias, low, high, factor, shift, rounder;
  hn::Vec<Di> offset, rounder_bits;
};

// The nearest level, less the offset, plus 1.5 x 2^23: adding that rounds to the nearest even
// integer, which then is in the low bits. Asymmetric levels have no bias, and their values are
// integers times a step: fewer operations, the same results.
template <bool kSymmetric>
HWY_INLINE Vf Nearest(const Constants& c, Vf x, Vf inverse) {
  Vf y = hn::Mul(x, inverse);
  if constexpr (kSymmetric) y = hn::Add(y, c.bias);
  return hn::Add(hn::Min(hn::Max(y, c.low), c.high), c.rounder);
}

// `n`: a code less the offset.
template <bool kSymmetric>
HWY_INLINE Vf Values(const Constants& c, Vf n, Vf step) {
  if constexpr (!kSymmetric) return hn::Mul(n, step);
  return hn::Mul(hn::Sub(hn::Mul(n, c.factor), c.shift), step);
}

HWY_INLINE Vf LoadCodes(const Constants& c, const uint8_t* codes) {
  return hn::ConvertTo(Df(), hn::Sub(hn::PromoteTo(Di(), hn::LoadU(D8(), codes)), c.offset));
}

HWY_INLINE void StoreCodes(const Constants& c, Vf nearest, uint8_t* codes) {
  hn::StoreU(hn::DemoteTo(D8(), hn::Sub(hn::BitCast(Di(), nearest), c.rounder_bits)), D8(), codes);
}

HWY_INLINE Vf LoadBf16(const uint16_t* m) {
  return hn::BitCast(Df(), hn::ShiftLeft<16>(hn::PromoteTo(Du(), hn::LoadU(D16(), m))));
}

// Rounds to bf16 as FloatToBf16 does; not for NaN, which the callers exclude.
HWY_INLINE hn::Vec<Du> RoundBf16(Vf x) {
  const Du du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
}

HWY_INLINE void StoreBf16(hn::Vec<Du> m, uint16_t* to) {
  hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(Di(), m)), D16(), to);
}

// |x| as integers: for such bits, signed comparison is the order of the magnitudes.
HWY_INLINE hn::Vec<Di> MagnitudeBits(Vf x) {
  return hn::BitCast(Di(), hn::And(hn::BitCast(Du(), x), hn::Set(Du(), 0x7fffffffu)));
}

HWY_INLINE void MaxInto(Vf x, uint32_t* max_bits) {
  auto* to = reinterpret_cast<int32_t*>(max_bits);
  hn::StoreU(hn::Max(MagnitudeBits(x), hn::LoadU(Di(), to)), Di(), to);
}

void MaxBitsInto(const float* x, size_t n, uint32_t* max_bits) {
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) MaxInto(hn::LoadU(Df(), x + i), max_bits + i);
  for (; i < n; ++i) max_bits[i] = std::max(max_bits[i], FloatBits(x[i]) & 0x7fffffffu);
}

void MaxBitsOfDifferenceInto(const float* a, const uint16_t* m, size_t n, uint32_t* max_bits) {
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    MaxInto(hn::Sub(hn::LoadU(Df(), a + i), LoadBf16(m + i)), max_bits + i);
  }
  for (; i < n; ++i) {
    max_bits[i] = std::max(max_bits[i], FloatBits(a[i] - Bf16ToFloat(m[i])) & 0x7fffffffu);
  }
}

uint32_t MaxBits(const float* x, size_t n) {
  const size_t lanes = hn::Lanes(Df());
  auto max0 = hn::Zero(Di());
  auto max1 = hn::Zero(Di());
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    max0 = hn::Max(max0, MagnitudeBits(hn::LoadU(Df(), x + i)));
    max1 = hn::Max(max1, MagnitudeBits(hn::LoadU(Df(), x + i + lanes)));
  }
  uint32_t result = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(Di(), hn::Max(max0, max1))));
  for (; i < n; ++i) result = std::max(result, FloatBits(x[i]) & 0x7fffffffu);
  return result;
}

void MaxBitsOfGroups(const float* x, size_t n, size_t group, uint32_t* max_bits) {
  for (size_t at = 0; at < n; at += group, ++max_bits)
    *max_bits = MaxBits(x + at, std::min(group, n - at));
}

template <bool kSymmetric>
HWY_INLINE void QuantizeRowT(const Levels& levels, const float* x, const float* inverse, size_t n,
                             uint8_t* codes) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    StoreCodes(c, Nearest<kSymmetric>(c, hn::LoadU(Df(), x + i), hn::LoadU(Df(), inverse + i)),
               codes + i);
  for (; i < n; ++i) codes[i] = QuantizeOne(levels, x[i], inverse[i]);
}

template <bool kSymmetric>
HWY_INLINE void DequantizeRowT(const Levels& levels, const uint8_t* codes, const float* step,
                               size_t n, float* x) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(Values<kSymmetric>(c, LoadCodes(c, codes + i), hn::LoadU(Df(), step + i)), Df(),
               x + i);
  for (; i < n; ++i) x[i] = DequantizeOne(levels, codes[i], step[i]);
}

template <bool kSymmetric>
HWY_INLINE void QuantizeDeltaRowT(const Levels& levels, const float* a, const float* inverse,
                                  const float* step, size_t n, uint16_t* m, uint8_t* codes) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Vf before = LoadBf16(m + i);
    const auto nearest = Nearest<kSymmetric>(c, hn::Sub(hn::LoadU(Df(), a + i), before),
                                             hn::LoadU(Df(), inverse + i));
    StoreCodes(c, nearest, codes + i);
    StoreBf16(RoundBf16(hn::Add(before, Values<kSymmetric>(c, hn::Sub(nearest, c.rounder),
                                                           hn::LoadU(Df(), step + i)))),
              m + i);
  }
  for (; i < n; ++i) {
    const float before = Bf16ToFloat(m[i]);
    codes[i] = QuantizeOne(levels, a[i] - before, inverse[i]);
    m[i] = FloatToBf16(before + DequantizeOne(levels, codes[i], step[i]));
  }
}

template <bool kSymmetric>
HWY_INLINE void DequantizeDeltaRowT(const Levels& levels, const uint8_t* codes, const float* step,
                                    size_t n, uint16_t* m, float* sum) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Vf total = hn::Add(
        LoadBf16(m + i), Values<kSymmetric>(c, LoadCodes(c, codes + i), hn::LoadU(Df(), step + i)));
    hn::StoreU(total, Df(), sum + i);
    StoreBf16(RoundBf16(total), m + i);
  }
  for (; i < n; ++i) {
    sum[i] = Bf16ToFloat(m[i]) + DequantizeOne(levels, codes[i], step[i]);
    m[i] = FloatToBf16(sum[i]);
  }
}

void QuantizeRow(const Levels& levels, const float* x, const float* inverse, size_t n,
                 uint8_t* codes) {
  levels.symmetric ? QuantizeRowT<true>(levels, x, inverse, n, codes)
                   : QuantizeRowT<false>(levels, x, inverse, n, codes);
}

void DequantizeRow(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                   float* x) {
  levels.symmetric ? DequantizeRowT<true>(levels, codes, step, n, x)
                   : DequantizeRowT<false>(levels, codes, step, n, x);
}

void QuantizeDeltaRow(const Levels& levels, const float* a, const float* inverse, const float* step,
                      size_t n, uint16_t* m, uint8_t* codes) {
  levels.symmetric ? QuantizeDeltaRowT<true>(levels, a, inverse, step, n, m, codes)
                   : QuantizeDeltaRowT<false>(levels, a, inverse, step, n, m, codes);
}

void DequantizeDeltaRow(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                        uint16_t* m, float* sum) {
  levels.symmetric ? DequantizeDeltaRowT<true>(levels, codes, step, n, m, sum)
                   : DequantizeDeltaRowT<false>(levels, codes, step, n, m, sum);
}

}  // namespace isthmus::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::compress {

HWY_EXPORT(MaxBitsInto);
HWY_EXPORT(MaxBitsOfDifferenceInto);
HWY_EXPORT(MaxBits);
HWY_EXPORT(MaxBitsOfGroups);
HWY_EXPORT(QuantizeRow);
HWY_EXPORT(DequantizeRow);
HWY_EXPORT(QuantizeDeltaRow);
HWY_EXPORT(DequantizeDeltaRow);

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
void MaxBitsOfDifferenceInto(const float* a, const uint16_t* m, size_t n, uint32_t* max_bits) {
  HWY_DYNAMIC_DISPATCH(MaxBitsOfDifferenceInto)(a, m, n, max_bits);
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

void QuantizeRow(const Levels& levels, const float* x, const float* inverse, size_t n,
                 uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(levels, x, inverse, n, codes);
}

void QuantizeRowStochastic(const Levels& levels, const float* x, const float* inverse, size_t n,
                           uint64_t seed, uint64_t draw, uint64_t first, uint8_t* codes) {
  for (size_t i = 0; i < n; ++i) {
    const float u = static_cast<float>(RandomBits(seed, draw, first + i) >> 40) * 0x1p-24f;
    const float y = std::floor(x[i] * inverse[i] + levels.bias + u);
    codes[i] = static_cast<uint8_t>(
        static_cast<int32_t>(std::min(std::max(y, levels.low), levels.high)) + levels.offset);
  }
}

void DequantizeRow(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                   float* x) {
  HWY_DYNAMIC_DISPATCH(DequantizeRow)(levels, codes, step, n, x);
}

void QuantizeDeltaRow(const Levels& levels, const float* a, const float* inverse, const float* step,
                      size_t n, uint16_t* m, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeDeltaRow)(levels, a, inverse, step, n, m, codes);
}

void DequantizeDeltaRow(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                        uint16_t* m, float* sum) {
  HWY_DYNAMIC_DISPATCH(DequantizeDeltaRow)(levels, codes, step, n, m, sum);
}

}  // namespace isthmus::compress
#endif  // HWY_ONCE
