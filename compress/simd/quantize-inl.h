// One vector of the quantiser's arithmetic (quantize.h), for the files that Highway compiles once a
// target: quantize.cc and quantize_delta.cc include it after foreach_target.h. The guard is
// Highway's for such headers.
//
// Thread: pure functions.
#if defined(ISTHMUS_COMPRESS_SIMD_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_COMPRESS_SIMD_QUANTIZE_INL_H_
#undef ISTHMUS_COMPRESS_SIMD_QUANTIZE_INL_H_
#else
#define ISTHMUS_COMPRESS_SIMD_QUANTIZE_INL_H_
#endif

#include <algorithm>

#include "compress/simd/convert.h"
#include "compress/simd/quantize.h"
#include "compress/simd/quantize_one.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::compress::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Df = hn::ScalableTag<float>;
using Du = hn::RebindToUnsigned<Df>;
using Di = hn::RebindToSigned<Df>;
using D16 = hn::Rebind<uint16_t, Df>;
using D8 = hn::Rebind<uint8_t, Df>;
using Vf = hn::Vec<Df>;
using Vu = hn::Vec<Du>;
#if HWY_TARGET != HWY_SCALAR
using Whole16 = hn::Repartition<uint16_t, Df>;  // whole vectors of narrow lanes
using Whole8 = hn::Repartition<uint8_t, Df>;
#endif

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
        rounder_bits(hn::Set(Di(), kRounderBits - l.offset)),
        narrow_offset(static_cast<uint8_t>(l.offset)) {}
  Vf bias, low, high, factor, shift, rounder;
  hn::Vec<Di> offset, rounder_bits;
  uint8_t narrow_offset;
};

// The inverse or step of the elements: each its own, or one for all.
struct OwnScales {
  explicit OwnScales(const float* p) : values(p) {}
  HWY_INLINE Vf At(size_t i) const { return hn::LoadU(Df(), values + i); }
  HWY_INLINE float One(size_t i) const { return values[i]; }
  const float* values;
};
struct OneScale {
  explicit OneScale(const float* p) : value(*p), all(hn::Set(Df(), *p)) {}
  HWY_INLINE Vf At(size_t) const { return all; }
  HWY_INLINE float One(size_t) const { return value; }
  float value;
  Vf all;
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

// Rounds to bf16 as FloatToBf16 does, in the upper half; the lower one is not cleared. Not for NaN
// with bits there, which the callers exclude.
HWY_INLINE Vu RoundBf16(Vf x) {
  const Du du;
  const Vu bits = hn::BitCast(du, x);
  const Vu odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
}

HWY_INLINE void StoreBf16(Vu rounded, uint16_t* to) {
  hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(Di(), hn::ShiftRight<16>(rounded))), D16(), to);
}

#if HWY_TARGET != HWY_SCALAR
// Four vectors at once: a narrow lane is a shuffle's choice, and the offset is added to bytes.
HWY_INLINE void StoreCodes4(const Constants& c, Vf n0, Vf n1, Vf n2, Vf n3, uint8_t* codes) {
  const Whole16 d16;
  const Whole8 d8;
  const auto low = hn::ConcatEven(d16, hn::BitCast(d16, n1), hn::BitCast(d16, n0));
  const auto high = hn::ConcatEven(d16, hn::BitCast(d16, n3), hn::BitCast(d16, n2));
  const auto bytes = hn::ConcatEven(d8, hn::BitCast(d8, high), hn::BitCast(d8, low));
  hn::StoreU(hn::Add(bytes, hn::Set(d8, c.narrow_offset)), d8, codes);
}

HWY_INLINE void StoreBf16Pair(Vu rounded0, Vu rounded1, uint16_t* to) {
  const Whole16 d16;
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, rounded1), hn::BitCast(d16, rounded0)), d16, to);
}
#endif

// Codes of n elements: `nearest` gives those of a vector from i on. What is left of them, less than
// a vector, begins where it returns.
template <class F>
HWY_INLINE size_t StoreNearest(const Constants& c, size_t n, const F& nearest, uint8_t* codes) {
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    StoreCodes4(c, nearest(i), nearest(i + lanes), nearest(i + 2 * lanes), nearest(i + 3 * lanes),
                codes + i);
  }
#endif
  for (; i + lanes <= n; i += lanes) StoreCodes(c, nearest(i), codes + i);
  return i;
}

// |x| as integers: for such bits, signed comparison is the order of the magnitudes.
HWY_INLINE hn::Vec<Di> MagnitudeBits(Vf x) {
  return hn::BitCast(Di(), hn::And(hn::BitCast(Du(), x), hn::Set(Du(), 0x7fffffffu)));
}

HWY_INLINE void MaxInto(Vf x, uint32_t* max_bits) {
  auto* to = reinterpret_cast<int32_t*>(max_bits);
  hn::StoreU(hn::Max(MagnitudeBits(x), hn::LoadU(Di(), to)), Di(), to);
}

// The largest bits of n numbers: `load` gives a vector of them from i on, `one` the i-th.
template <class Load, class One>
HWY_INLINE uint32_t MaxBitsOf(size_t n, const Load& load, const One& one) {
  const size_t lanes = hn::Lanes(Df());
  auto max0 = hn::Zero(Di()), max1 = max0;
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    max0 = hn::Max(max0, MagnitudeBits(load(i)));
    max1 = hn::Max(max1, MagnitudeBits(load(i + lanes)));
  }
  uint32_t result = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(Di(), hn::Max(max0, max1))));
  for (; i < n; ++i) result = std::max(result, FloatBits(one(i)) & 0x7fffffffu);
  return result;
}

}  // namespace isthmus::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ISTHMUS_COMPRESS_SIMD_QUANTIZE_INL_H_
