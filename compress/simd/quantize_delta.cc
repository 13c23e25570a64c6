#include "compress/simd/quantize_delta.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/simd/quantize_delta.cc"
#include "hwy/foreach_target.h"  // compiles this file once a target
// After foreach_target.h:
#include "compress/simd/quantize-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::compress::HWY_NAMESPACE {

// What a loop over rows reads soon, where they lie one after the other: a sample is in no
// first-level cache, and the passes over a row leave the hardware's prefetcher no long streams. No
// access: past the end of an array it does nothing.
constexpr size_t kPrefetchBytes = 4096;
template <class T>
HWY_INLINE void PrefetchAfter(const T* at) {
  hwy::Prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
}

void MaxBitsOfDifferenceInto(const float* a, const uint16_t* m, size_t n, uint32_t* max_bits) {
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    PrefetchAfter(a + i);
    MaxInto(hn::Sub(hn::LoadU(Df(), a + i), LoadBf16(m + i)), max_bits + i);
  }
  for (; i < n; ++i) {
    max_bits[i] = std::max(max_bits[i], FloatBits(a[i] - Bf16ToFloat(m[i])) & 0x7fffffffu);
  }
}

void MaxBitsOfDifferenceGroups(const float* a, const uint16_t* m, size_t n, size_t group,
                               uint32_t* max_bits) {
  for (size_t at = 0; at < n; at += group, ++max_bits) {
    const float* ga = a + at;
    const uint16_t* gm = m + at;
    *max_bits = MaxBitsOf(
        std::min(group, n - at),
        [ga, gm](size_t i) HWY_ATTR { return hn::Sub(hn::LoadU(Df(), ga + i), LoadBf16(gm + i)); },
        [ga, gm](size_t i) { return ga[i] - Bf16ToFloat(gm[i]); });
  }
}

// One step of QuantizeDeltaRow: what the codes are made of, and the new buffer.
struct Step {
  Vf nearest;
  Vu m;
};
template <bool kSymmetric>
HWY_INLINE Step DeltaStep(const Constants& c, Vf a, Vf before, Vf inverse, Vf step) {
  const Vf nearest = Nearest<kSymmetric>(c, hn::Sub(a, before), inverse);
  const Vf value = Values<kSymmetric>(c, hn::Sub(nearest, c.rounder), step);
  return {nearest, RoundBf16(hn::Add(before, value))};
}

template <bool kSymmetric, class Scales>
HWY_INLINE void QuantizeDeltaSpan(const Levels& levels, const float* a, const Scales& inverse,
                                  const Scales& step, size_t n, uint16_t* m, uint8_t* codes) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  const auto one = [&](size_t i) HWY_ATTR {
    PrefetchAfter(a + i);
    return DeltaStep<kSymmetric>(c, hn::LoadU(Df(), a + i), LoadBf16(m + i), inverse.At(i),
                                 step.At(i));
  };
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const Step s0 = one(i), s1 = one(i + lanes), s2 = one(i + 2 * lanes), s3 = one(i + 3 * lanes);
    StoreCodes4(c, s0.nearest, s1.nearest, s2.nearest, s3.nearest, codes + i);
    StoreBf16Pair(s0.m, s1.m, m + i);
    StoreBf16Pair(s2.m, s3.m, m + i + 2 * lanes);
  }
#endif
  for (; i + lanes <= n; i += lanes) {
    const Step s = one(i);
    StoreCodes(c, s.nearest, codes + i);
    StoreBf16(s.m, m + i);
  }
  for (; i < n; ++i) {
    const float before = Bf16ToFloat(m[i]);
    codes[i] = QuantizeOne(levels, a[i] - before, inverse.One(i));
    m[i] = FloatToBf16(before + DequantizeOne(levels, codes[i], step.One(i)));
  }
}

template <bool kSymmetric, class Scales>
HWY_INLINE void DequantizeDeltaSpan(const Levels& levels, const uint8_t* codes, const Scales& step,
                                    size_t n, uint16_t* m, float* sum) {
  const Constants c(levels);
  const size_t lanes = hn::Lanes(Df());
  const auto total = [&](size_t i) HWY_ATTR {
    const Vf value = Values<kSymmetric>(c, LoadCodes(c, codes + i), step.At(i));
    const Vf s = hn::Add(LoadBf16(m + i), value);
    hn::StoreU(s, Df(), sum + i);
    return RoundBf16(s);
  };
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const Vu first = total(i), second = total(i + lanes);
    StoreBf16Pair(first, second, m + i);
  }
#endif
  for (; i + lanes <= n; i += lanes) StoreBf16(total(i), m + i);
  for (; i < n; ++i) {
    sum[i] = Bf16ToFloat(m[i]) + DequantizeOne(levels, codes[i], step.One(i));
    m[i] = FloatToBf16(sum[i]);
  }
}

template <bool kSymmetric>
void QuantizeDeltaRowT(const Levels& levels, const float* a, RowScales inverse, RowScales step,
                       size_t n, uint16_t* m, uint8_t* codes) {
  if (inverse.group == 1) {
    return QuantizeDeltaSpan<kSymmetric>(levels, a, OwnScales(inverse.values),
                                         OwnScales(step.values), n, m, codes);
  }
  for (size_t at = 0; at < n; at += inverse.group, ++inverse.values, ++step.values) {
    QuantizeDeltaSpan<kSymmetric>(levels, a + at, OneScale(inverse.values), OneScale(step.values),
                                  std::min(inverse.group, n - at), m + at, codes + at);
  }
}

template <bool kSymmetric>
void DequantizeDeltaRowT(const Levels& levels, const uint8_t* codes, RowScales step, size_t n,
                         uint16_t* m, float* sum) {
  if (step.group == 1) {
    return DequantizeDeltaSpan<kSymmetric>(levels, codes, OwnScales(step.values), n, m, sum);
  }
  for (size_t at = 0; at < n; at += step.group, ++step.values) {
    DequantizeDeltaSpan<kSymmetric>(levels, codes + at, OneScale(step.values),
                                    std::min(step.group, n - at), m + at, sum + at);
  }
}

void QuantizeDeltaRow(const Levels& levels, const float* a, RowScales inverse, RowScales step,
                      size_t n, uint16_t* m, uint8_t* codes) {
  levels.symmetric ? QuantizeDeltaRowT<true>(levels, a, inverse, step, n, m, codes)
                   : QuantizeDeltaRowT<false>(levels, a, inverse, step, n, m, codes);
}

void DequantizeDeltaRow(const Levels& levels, const uint8_t* codes, RowScales step, size_t n,
                        uint16_t* m, float* sum) {
  levels.symmetric ? DequantizeDeltaRowT<true>(levels, codes, step, n, m, sum)
                   : DequantizeDeltaRowT<false>(levels, codes, step, n, m, sum);
}

// bf16 of n codes: `rounded` gives those of a vector from i on. Returns as StoreNearest.
template <class F>
HWY_INLINE size_t StoreRounded(size_t n, const uint8_t* codes, const F& rounded, uint16_t* m) {
  const size_t lanes = hn::Lanes(Df());
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    PrefetchAfter(codes + i);
    StoreBf16Pair(rounded(i), rounded(i + lanes), m + i);
  }
#endif
  for (; i + lanes <= n; i += lanes) StoreBf16(rounded(i), m + i);
  return i;
}

// Stored buffers are asymmetric (buffer_format.h).
void DequantizeToBf16(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                      uint16_t* m) {
  const Constants c(levels);
  const auto rounded = [&](size_t i) HWY_ATTR {
    return RoundBf16(Values<false>(c, LoadCodes(c, codes + i), hn::LoadU(Df(), step + i)));
  };
  size_t i = StoreRounded(n, codes, rounded, m);
  for (; i < n; ++i) m[i] = FloatToBf16(DequantizeOne(levels, codes[i], step[i]));
}

void DequantizeToBf16Against(const Levels& levels, const uint8_t* codes, const float* step,
                             const float* a, size_t n, uint16_t* m, uint32_t* max_bits) {
  const Constants c(levels);
  const auto opened = [&](size_t i) HWY_ATTR {
    PrefetchAfter(a + i);
    const Vu r = RoundBf16(Values<false>(c, LoadCodes(c, codes + i), hn::LoadU(Df(), step + i)));
    const Vf v = hn::BitCast(Df(), hn::And(r, hn::Set(Du(), 0xffff0000u)));
    MaxInto(hn::Sub(hn::LoadU(Df(), a + i), v), max_bits + i);
    return r;
  };
  size_t i = StoreRounded(n, codes, opened, m);
  for (; i < n; ++i) {
    m[i] = FloatToBf16(DequantizeOne(levels, codes[i], step[i]));
    max_bits[i] = std::max(max_bits[i], FloatBits(a[i] - Bf16ToFloat(m[i])) & 0x7fffffffu);
  }
}

void QuantizeBf16(const Levels& levels, const uint16_t* m, const float* inverse, size_t n,
                  uint8_t* codes) {
  const Constants c(levels);
  const auto nearest = [&](size_t i) HWY_ATTR {
    return Nearest<false>(c, LoadBf16(m + i), hn::LoadU(Df(), inverse + i));
  };
  size_t i = StoreNearest(c, n, nearest, codes);
  for (; i < n; ++i) codes[i] = QuantizeOne(levels, Bf16ToFloat(m[i]), inverse[i]);
}

void MaxOfBf16Into(const uint16_t* m, size_t n, uint16_t* max) {
  const hn::ScalableTag<int16_t> d;  // magnitudes have no sign
  const size_t lanes = hn::Lanes(d);
  const auto* from = reinterpret_cast<const int16_t*>(m);
  auto* to = reinterpret_cast<int16_t*>(max);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto magnitude = hn::And(hn::LoadU(d, from + i), hn::Set(d, 0x7fff));
    hn::StoreU(hn::Max(magnitude, hn::LoadU(d, to + i)), d, to + i);
  }
  for (; i < n; ++i) max[i] = std::max(max[i], static_cast<uint16_t>(m[i] & 0x7fffu));
}

}  // namespace isthmus::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::compress {

HWY_EXPORT(MaxBitsOfDifferenceInto);
HWY_EXPORT(MaxBitsOfDifferenceGroups);
HWY_EXPORT(QuantizeDeltaRow);
HWY_EXPORT(DequantizeDeltaRow);
HWY_EXPORT(DequantizeToBf16);
HWY_EXPORT(DequantizeToBf16Against);
HWY_EXPORT(QuantizeBf16);
HWY_EXPORT(MaxOfBf16Into);

void MaxBitsOfDifferenceInto(const float* a, const uint16_t* m, size_t n, uint32_t* max_bits) {
  HWY_DYNAMIC_DISPATCH(MaxBitsOfDifferenceInto)(a, m, n, max_bits);
}

void MaxBitsOfDifferenceGroups(const float* a, const uint16_t* m, size_t n, size_t group,
                               uint32_t* max_bits) {
  HWY_DYNAMIC_DISPATCH(MaxBitsOfDifferenceGroups)(a, m, n, group, max_bits);
}

void QuantizeDeltaRow(const Levels& levels, const float* a, RowScales inverse, RowScales step,
                      size_t n, uint16_t* m, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeDeltaRow)(levels, a, inverse, step, n, m, codes);
}

void DequantizeDeltaRow(const Levels& levels, const uint8_t* codes, RowScales step, size_t n,
                        uint16_t* m, float* sum) {
  HWY_DYNAMIC_DISPATCH(DequantizeDeltaRow)(levels, codes, step, n, m, sum);
}

void DequantizeToBf16(const Levels& levels, const uint8_t* codes, const float* step, size_t n,
                      uint16_t* m) {
  HWY_DYNAMIC_DISPATCH(DequantizeToBf16)(levels, codes, step, n, m);
}

void DequantizeToBf16Against(const Levels& levels, const uint8_t* codes, const float* step,
                             const float* a, size_t n, uint16_t* m, uint32_t* max_bits) {
  HWY_DYNAMIC_DISPATCH(DequantizeToBf16Against)(levels, codes, step, a, n, m, max_bits);
}

void QuantizeBf16(const Levels& levels, const uint16_t* m, const float* inverse, size_t n,
                  uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeBf16)(levels, m, inverse, n, codes);
}

void MaxOfBf16Into(const uint16_t* m, size_t n, uint16_t* max) {
  HWY_DYNAMIC_DISPATCH(MaxOfBf16Into)(m, n, max);
}

}  // namespace isthmus::compress
#endif  // HWY_ONCE
