// What the quantiser's kernels share: its arithmetic (compress/simd/quantize.h, bit for bit) and
// vectors of eight elements. Every floating-point operation is written as a rounded intrinsic, so
// that none is fused or approximated whatever the compiler's flags.
//
// Thread: device functions.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_MATH_CUH_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_MATH_CUH_

#include <cstdint>
#include <type_traits>

#include "compress/cuda/kernels/element.cuh"
#include "compress/cuda/kernels/kernels.h"
#include "compress/cuda/kernels/quant_fields.cuh"
#include "compress/simd/quantize.h"

namespace isthmus::compress::cuda {

inline constexpr int kMaxJobs = 32;  // samples of a launch: they travel as kernel parameters

// Samples under this are addressed with 32 bits in the one-pass kernels.
inline constexpr int64_t kMaxSampleBytes = (int64_t{1} << 32) - 1;

template <typename Job>
struct Launch {
  Job jobs[kMaxJobs];
  Levels levels{4, false};
  int64_t positions, hidden, scales, codes_at;
  float step_factor;  // 1 / top
  int group_vectors;  // of kGroup: vectors of eight in a group; 0: the scale is the token's
  int groups_of_row;  // scales of a position
};

constexpr float kRounder = 12582912.0f;  // 1.5 x 2^23: adding it rounds to the nearest even integer
constexpr uint32_t kRounderBits = 0x4b400000u;
constexpr uint32_t kQuietNan = 0x7fc00000u;  // what the CPU makes of a NaN scale

__device__ inline uint16_t DeviceScaleOfBits(uint32_t max_bits) {
  if (max_bits >= 0x7f800000u) return kScaleNan;
  if (max_bits < uint32_t{kScaleMin} << 16) return 0;
  if (max_bits > uint32_t{kScaleMax} << 16) return kScaleMax;
  return static_cast<uint16_t>((max_bits + 0xffffu) >> 16);
}

__device__ inline float DeviceInverse(const Levels& l, uint16_t scale) {
  if (scale == 0 || scale == kScaleNan) return 0.0f;
  // Asymmetric: the top is a power of two, so that the reciprocal's rounding is the quotient's.
  if (!l.symmetric) return __fmul_rn(l.top, __frcp_rn(Bf16Bits(scale)));
  return __fmul_rn(__fdiv_rn(l.top, Bf16Bits(scale)), 0.5f);
}

// scale / top. `factor`: 1 / top, rounded. Of asymmetric levels the product is exact; else one step
// of correction makes it the rounded quotient: of every scale and top (tests/gpu).
__device__ inline float StepOf(const Levels& l, float factor, uint32_t scale) {
  const float s = Bf16Bits(scale), step = __fmul_rn(s, factor);
  return l.symmetric ? __fmaf_rn(__fmaf_rn(-step, l.top, s), factor, step) : step;
}

__device__ inline float DeviceStep(const Levels& l, float factor, uint16_t scale) {
  return scale == kScaleNan ? __uint_as_float(kQuietNan) : StepOf(l, factor, scale);
}

// The nearest level, less the offset, plus kRounder. No clamp is needed at the low end, and none at
// the high end of symmetric levels, where |x| is at most the scale: not of maximum scales that are
// neither NaN nor saturated (IsOdd), and those are nearly all.
template <bool kClamp>
__device__ inline float Nearest(const Levels& l, float x, float inverse) {
  float y = __fadd_rn(__fmul_rn(x, inverse), l.bias);
  if constexpr (kClamp) y = fmaxf(y, l.low);
  return __fadd_rn(fminf(y, l.high), kRounder);
}

__device__ inline bool IsOdd(uint16_t scale) { return scale == kScaleNan || scale == kScaleMax; }

// `n`: a code less the offset, an integer. The first step is exact, fused or not; for asymmetric
// levels it changes nothing, and kSkip leaves it out. Which is faster depends on the kernel.
template <bool kSkip>
__device__ inline float ValueOf(const Levels& l, float n, float step) {
  if constexpr (kSkip) {
    if (l.symmetric) n = __fmaf_rn(n, l.code_factor, -l.code_shift);
  } else {
    n = __fmaf_rn(n, l.code_factor, l.symmetric ? -l.code_shift : 0.0f);
  }
  return __fmul_rn(n, step);
}

// Four codes as one number, the first the most significant, from what Nearest gave: the bits of
// each are its code plus a constant, and those constants are taken away at the end, modulo 2^32.
template <int kBits>
__device__ inline uint32_t PackHalf(const float* nearest, int32_t offset) {
  constexpr uint32_t kBase = 1u << kBits, kOnes = ((kBase + 1) * kBase + 1) * kBase + 1;
  uint32_t half = __float_as_uint(nearest[0]);
#pragma unroll
  for (int i = 1; i < 4; ++i) half = half * kBase + __float_as_uint(nearest[i]);
  return half - (kRounderBits - static_cast<uint32_t>(offset)) * kOnes;
}

// Eight neighbouring elements, as they lie in memory.
template <DType kType>
struct Vector {
  static constexpr int kWords = kType == DType::kF32 ? 8 : 4;
  static constexpr uint32_t kBytes = 4 * kWords;
  uint32_t word[kWords];

  __device__ void Load(const uint8_t* from) {
    const uint4* at = reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 v = __ldcs(at + i);
      word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
    }
  }
  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = 0;
  }
  __device__ float operator[](int i) const {
    if constexpr (kType == DType::kF32) return __uint_as_float(word[i]);
    const uint32_t pair = word[i / 2 % kWords];
    if constexpr (kType == DType::kBf16)
      return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    return __half2float(__ushort_as_half(static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16)));
  }
  __device__ void Set(const float* x) {
    if constexpr (kType == DType::kF32) {
#pragma unroll
      for (int i = 0; i < 8; ++i) word[i % kWords] = __float_as_uint(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kType == DType::kBf16) {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
          word[i] = *reinterpret_cast<const uint32_t*>(&pair);
        } else {
          const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
          word[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
      }
    }
  }
  // Element i becomes the NaN that the CPU writes.
  __device__ void SetNan(int i) {
    if constexpr (kType == DType::kF32) {
      word[i % kWords] = kQuietNan;
    } else {
      const uint32_t nan = kType == DType::kBf16 ? 0x7fc0u : 0x7e00u;
      uint32_t& pair = word[i / 2 % kWords];
      pair = i % 2 == 0 ? (pair & 0xffff0000u) | nan : (pair & 0xffffu) | nan << 16;
    }
  }
  // Makes the compiler forget what it computed from the words: to do it again costs less than to
  // keep it in registers.
  __device__ void Forget() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(word[i]));
  }
  // Elements that are not finite become zero.
  __device__ void DropNotFinite() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (Magnitude((*this)[i]) < 0x7f800000u) continue;
      if constexpr (kType == DType::kF32) {
        word[i % kWords] = 0;
      } else {
        word[i / 2 % kWords] &= i % 2 == 0 ? 0xffff0000u : 0xffffu;
      }
    }
  }
  __device__ void Store(uint8_t* to) const {
    uint4* at = reinterpret_cast<uint4*>(to);
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i)
      at[i] = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
  }
  // As Store, of a row of vectors in the lanes of `mask`, two or more from an even one on. Two
  // lanes exchange halves, so that each store fills whole sectors of 32 bytes.
  __device__ void StoreRow(uint8_t* to, unsigned mask) const {
    if constexpr (kWords == 4) {
      Store(to);
    } else {
      const bool odd = threadIdx.x % 2 == 1;
      uint32_t first[4], second[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t other = __shfl_xor_sync(mask, odd ? word[i] : word[4 + i], 1);
        first[i] = odd ? other : word[i];       // of the even lane's vector
        second[i] = odd ? word[4 + i] : other;  // of the odd lane's
      }
      uint4* at = reinterpret_cast<uint4*>(odd ? to - 16 : to);
      at[0] = make_uint4(first[0], first[1], first[2], first[3]);
      at[2] = make_uint4(second[0], second[1], second[2], second[3]);
    }
  }
};

// Bits of the larger of a magnitude and |x|; NaN is the largest.
__device__ inline uint32_t LargerMagnitude(uint32_t most, float x) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(__uint_as_float(most)), "f"(fabsf(x)));
  return __float_as_uint(larger);
}

// The largest magnitudes of vectors, element by element. 16-bit elements are compared as they are.
template <DType kType, bool kDelta>
struct Largest {
  static constexpr bool kPacked = !kDelta && kType != DType::kF32;
  static constexpr int kWords = kPacked ? 4 : 8;
  uint32_t word[kWords] = {0};

  __device__ static uint32_t Larger(uint32_t x, uint32_t y) {
    return kPacked ? __vmaxu2(x, y) : max(x, y);
  }
  __device__ void Add(const Vector<kType>& a, const Vector<DType::kBf16>& m) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kPacked) {
        word[i] = __vmaxu2(word[i], a.word[i] & 0x7fff7fffu);
      } else {
        word[i] = LargerMagnitude(word[i], kDelta ? __fsub_rn(a[i], m[i]) : a[i]);
      }
    }
  }
  // With those of the lane whose number differs in `bit`.
  __device__ void Exchange(int bit) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = Larger(word[i], __shfl_xor_sync(~0u, word[i], bit));
  }
  // Bits of |x| in fp32.
  __device__ static uint32_t Bits(uint32_t x) {
    if constexpr (!kPacked) return x;
    if constexpr (kType == DType::kBf16) return x << 16;
    return Magnitude(__half2float(__ushort_as_half(static_cast<uint16_t>(x))));
  }
  __device__ uint32_t operator[](int i) const {
    if constexpr (!kPacked) return word[i % kWords];
    return Bits(i % 2 == 0 ? word[i / 2 % kWords] & 0xffffu : word[i / 2 % kWords] >> 16);
  }
  // Of all elements: to be compared, and then given to Bits.
  __device__ uint32_t Most() const {
    uint32_t most = word[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) most = Larger(most, word[i]);
    return kPacked ? max(most & 0xffffu, most >> 16) : most;
  }
};

// What is known of a vector's levels and elements: of asymmetric levels the bias is nought; scales
// that are not odd (IsOdd) keep elements finite and in range.
enum class Known { kAsymmetric, kOrdinary, kNothing };

// Codes of a vector, as two halves (PackHalf), and, with a delta buffer, its update: m := bf16(m +
// value).
template <int kBits, bool kDelta, Known kKnown, bool kSkip, DType kType>
__device__ inline void QuantizeVector(const Levels& l, Vector<kType> a, Vector<DType::kBf16>* m,
                                      const float* inverse, const float* step, uint32_t* high,
                                      uint32_t* low) {
  if constexpr (kKnown == Known::kNothing) a.DropNotFinite();
  float nearest[8], sum[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float before = kDelta ? (*m)[i] : 0.0f;
    const float x = kDelta ? __fsub_rn(a[i], before) : a[i];
    if constexpr (kKnown == Known::kAsymmetric) {
      nearest[i] = __fadd_rn(fminf(__fmul_rn(x, inverse[i]), l.high), kRounder);
    } else {
      nearest[i] = Nearest<kKnown == Known::kNothing>(l, x, inverse[i]);
    }
    if constexpr (kDelta) {
      const float n = __fsub_rn(nearest[i], kRounder);
      sum[i] = __fadd_rn(before, kKnown == Known::kAsymmetric ? __fmul_rn(n, step[i])
                                                              : ValueOf<kSkip>(l, n, step[i]));
    }
  }
  if constexpr (kDelta) m->Set(sum);
  *high = PackHalf<kBits>(nearest, l.offset);
  *low = PackHalf<kBits>(nearest + 4, l.offset);
}

// As QuantizeVector, of elements that may be anything; `odd`: some scale of the vector may be.
template <int kBits, bool kDelta, bool kSkip, DType kType>
__device__ inline void QuantizeAny(const Levels& l, bool odd, Vector<kType>* a,
                                   Vector<DType::kBf16>* m, const float* inverse, const float* step,
                                   uint32_t* high, uint32_t* low) {
  a->Forget();
  if (odd) {
    QuantizeVector<kBits, kDelta, Known::kNothing, kSkip>(l, *a, m, inverse, step, high, low);
  } else if (!l.symmetric) {
    QuantizeVector<kBits, kDelta, Known::kAsymmetric, kSkip>(l, *a, m, inverse, step, high, low);
  } else {
    QuantizeVector<kBits, kDelta, Known::kOrdinary, kSkip>(l, *a, m, inverse, step, high, low);
  }
}

// The other way: out := value, or m + value with m := bf16(that). `nan`: bit i is set where step[i]
// is NaN.
template <int kBits, bool kDelta, DType kType>
__device__ inline void DequantizeVector(const Levels& l, uint32_t high, uint32_t low,
                                        const float* step, uint32_t nan, Vector<DType::kBf16>* m,
                                        Vector<kType>* out) {
  // A float of 2^15 + code: the code begins at bit 8. That times 1 or 2, less 2^15 or 2^16 and the
  // levels' shift, is exact.
  constexpr uint32_t kMagic = 0x47000000u;
  const float shift = 32768.0f * l.code_factor + l.code_shift, factor = l.code_factor;
  // Not from kBits: masking and or-ing are one operation, and that can have only one constant.
  const uint32_t mask = ((1u << l.bits) - 1) << 8;
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int right = kBits * (3 - i % 4) - 8;
    const uint32_t half = i < 4 ? high : low;
    const uint32_t code = (right >= 0 ? half >> (right & 31) : half << (-right & 31)) & mask;
    x[i] = __fmul_rn(__fmaf_rn(__uint_as_float(code | kMagic), factor, -shift), step[i]);
    if constexpr (kDelta) x[i] = __fadd_rn((*m)[i], x[i]);
  }
  if constexpr (kDelta) m->Set(x);
  out->Set(x);
  if (nan == 0) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (nan >> i & 1) out->SetNan(i);
  }
}

// Calls f(std::integral_constant<DType, dtype>()).
template <typename F>
Error ForDType(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(std::integral_constant<DType, DType::kF32>());
    case DType::kF16:
      return f(std::integral_constant<DType, DType::kF16>());
    default:
      return f(std::integral_constant<DType, DType::kBf16>());
  }
}

// Calls f(std::integral_constant<int, bits>()).
template <typename F>
Error ForBits(int bits, F f) {
  switch (bits) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 7:
      return f(std::integral_constant<int, 7>());
    default:
      return f(std::integral_constant<int, 8>());
  }
}

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_MATH_CUH_
