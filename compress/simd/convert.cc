#include "compress/simd/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/simd/convert.cc"
#include "hwy/foreach_target.h"  // compiles this file once a target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::compress::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void FloatsToBf16(const float* from, size_t n, uint16_t* to) {
  const hn::ScalableTag<uint32_t> du;
  const hn::RebindToSigned<decltype(du)> di;
  const hn::Rebind<uint16_t, decltype(du)> d16;
  const auto* bits_from = reinterpret_cast<const uint32_t*>(from);
  const size_t lanes = hn::Lanes(du);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::LoadU(du, bits_from + i);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffffff)));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto result = hn::IfThenElse(hn::RebindMask(du, is_nan), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(result))), d16, to + i);
  }
  for (; i < n; ++i) to[i] = FloatToBf16(from[i]);
}

void Bf16ToFloats(const uint16_t* from, size_t n, float* to) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<uint16_t, decltype(df)> d16;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto wide = hn::PromoteTo(du, hn::LoadU(d16, from + i));
    hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(wide)), df, to + i);
  }
  for (; i < n; ++i) to[i] = Bf16ToFloat(from[i]);
}

// Only targets with conversion instructions use them: Highway's emulation elsewhere does not round
// to nearest.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
void FloatsToHalf(const float* from, size_t n, uint16_t* to) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  auto* half_to = reinterpret_cast<hwy::float16_t*>(to);
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(df, from + i)), dh, half_to + i);
  }
  for (; i < n; ++i) to[i] = FloatToHalf(from[i]);
}

void HalfToFloats(const uint16_t* from, size_t n, float* to) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const auto* half_from = reinterpret_cast<const hwy::float16_t*>(from);
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, half_from + i)), df, to + i);
  }
  for (; i < n; ++i) to[i] = HalfToFloat(from[i]);
}
#else
void FloatsToHalf(const float* from, size_t n, uint16_t* to) {
  for (size_t i = 0; i < n; ++i) to[i] = FloatToHalf(from[i]);
}

void HalfToFloats(const uint16_t* from, size_t n, float* to) {
  for (size_t i = 0; i < n; ++i) to[i] = HalfToFloat(from[i]);
}
#endif

}  // namespace isthmus::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::compress {

HWY_EXPORT(FloatsToBf16);
HWY_EXPORT(Bf16ToFloats);
HWY_EXPORT(FloatsToHalf);
HWY_EXPORT(HalfToFloats);

void FloatsToBf16(const float* from, size_t n, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(FloatsToBf16)(from, n, to);
}
void Bf16ToFloats(const uint16_t* from, size_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(Bf16ToFloats)(from, n, to);
}
void FloatsToHalf(const float* from, size_t n, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(FloatsToHalf)(from, n, to);
}
void HalfToFloats(const uint16_t* from, size_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(HalfToFloats)(from, n, to);
}

float HalfToFloat(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = (x >> 10) & 0x1fu;
  const uint32_t mantissa = x & 0x3ffu;
  if (exponent == 0x1f) {
    return BitsToFloat(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa x 2^-24, exact in fp32
    return BitsToFloat(sign | FloatBits(static_cast<float>(mantissa) * 0x1p-24f));
  }
  return BitsToFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t FloatToHalf(float x) {
  const uint32_t bits = FloatBits(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude >= 0x38800000u) {  // normal: re-bias the exponent and round the 13 low bits to even
    const uint32_t rebiased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }
  if (magnitude < 0x33000000u) return sign;         // under 2^-25: rounds to zero
  const uint32_t shift = 126u - (magnitude >> 23);  // 14 to 24
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t kept = mantissa >> shift;
  return static_cast<uint16_t>(sign | ((mantissa + (half - 1) + (kept & 1u)) >> shift));
}

void ToFloats(const void* from, DType dtype, size_t n, float* to) {
  switch (dtype) {
    case DType::kF32:
      if (n > 0) std::memcpy(to, from, n * sizeof(float));
      return;
    case DType::kF16:
      return HalfToFloats(static_cast<const uint16_t*>(from), n, to);
    case DType::kBf16:
      return Bf16ToFloats(static_cast<const uint16_t*>(from), n, to);
  }
}

void FromFloats(const float* from, size_t n, DType dtype, void* to) {
  switch (dtype) {
    case DType::kF32:
      if (n > 0) std::memcpy(to, from, n * sizeof(float));
      return;
    case DType::kF16:
      return FloatsToHalf(from, n, static_cast<uint16_t*>(to));
    case DType::kBf16:
      return FloatsToBf16(from, n, static_cast<uint16_t*>(to));
  }
}

}  // namespace isthmus::compress
#endif  // HWY_ONCE
