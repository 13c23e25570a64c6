// Fields of eight codes in memory, kBits bytes each, most significant code first: what the
// quantiser's kernels store and load.
//
// Thread: device functions.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_FIELDS_CUH_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_FIELDS_CUH_

#include <cstdint>

namespace isthmus::compress::cuda {

// Fields of eight codes that are a whole number, 2^i, of bytes: they need no help to be stored.
constexpr bool IsWhole(int bits) { return (bits & (bits - 1)) == 0; }

// Eight codes (two halves) as kBits bytes, most significant first. `to` is a multiple of kBits from
// memory at a multiple of 8.
template <int kBits>
__device__ inline void StoreField(uint32_t high, uint32_t low, uint8_t* to) {
  if constexpr (kBits == 1) {
    *to = static_cast<uint8_t>(high << 4 | low);
  } else if constexpr (kBits == 2) {
    *reinterpret_cast<uint16_t*>(to) =
        static_cast<uint16_t>(__byte_perm(high << 8 | low, 0, 0x4401));
  } else if constexpr (kBits == 4) {
    *reinterpret_cast<uint32_t*>(to) = __byte_perm(high << 16 | low, 0, 0x0123);
  } else if constexpr (kBits == 8) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(__byte_perm(high, 0, 0x0123), __byte_perm(low, 0, 0x0123));
  } else if constexpr (kBits == 6) {
    const uint64_t field = static_cast<uint64_t>(high) << 24 | low;
#pragma unroll
    for (int i = 0; i < 3; ++i)
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(
          __byte_perm(static_cast<uint32_t>(field >> (32 - 16 * i)), 0, 0x4401));
  } else {
    const uint64_t field = static_cast<uint64_t>(high) << (4 * kBits) | low;
#pragma unroll
    for (int i = 0; i < kBits; ++i) to[i] = static_cast<uint8_t>(field >> (8 * (kBits - 1 - i)));
  }
}

// The codes of two neighbouring vectors, fields of a whole width. `to` is a multiple of 2 x kBits
// from memory at a multiple of 16.
template <int kBits>
__device__ inline void StorePair(const uint32_t (&high)[2], const uint32_t (&low)[2], uint8_t* to) {
  static_assert(IsWhole(kBits));
  if constexpr (kBits == 8) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(__byte_perm(high[0], 0, 0x0123), __byte_perm(low[0], 0, 0x0123),
                   __byte_perm(high[1], 0, 0x0123), __byte_perm(low[1], 0, 0x0123));
  } else if constexpr (kBits == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(__byte_perm(high[0] << 16 | low[0], 0, 0x0123),
                                               __byte_perm(high[1] << 16 | low[1], 0, 0x0123));
  } else if constexpr (kBits == 2) {
    *reinterpret_cast<uint32_t*>(to) =
        __byte_perm(high[0] << 8 | low[0], high[1] << 8 | low[1], 0x4501);
  } else {
    *reinterpret_cast<uint16_t*>(to) =
        static_cast<uint16_t>(high[0] << 4 | low[0] | high[1] << 12 | low[1] << 8);
  }
}

// 32 bits of the stream of two fields of 8 x kBits bits, from bit kAt on, the first byte lowest;
// zeros past its end.
template <int kBits, int kAt>
__device__ inline uint32_t WordOfPair(uint64_t first, uint64_t second) {
  constexpr int kField = 8 * kBits, kBelow = 2 * kField - kAt - 32;  // bits below the word
  uint64_t word = kBelow >= 0 ? second >> (kBelow & 63) : second << (-kBelow & 63);
  if constexpr (kAt + 32 <= kField) {
    word = first >> (kField - kAt - 32);
  } else if constexpr (kAt < kField) {
    word |= first << (kAt + 32 - kField);
  }
  return __byte_perm(static_cast<uint32_t>(word), 0, 0x0123);
}

// As StorePair, of 5, 6 and 7 bits.
template <int kBits>
__device__ inline void StoreOddPair(const uint32_t (&high)[2], const uint32_t (&low)[2],
                                    uint8_t* to) {
  const uint64_t first = static_cast<uint64_t>(high[0]) << (4 * kBits) | low[0];
  const uint64_t second = static_cast<uint64_t>(high[1]) << (4 * kBits) | low[1];
  uint32_t words[4] = {WordOfPair<kBits, 0>(first, second), WordOfPair<kBits, 32>(first, second),
                       WordOfPair<kBits, 64>(first, second)};
  if constexpr (kBits == 7) words[3] = WordOfPair<kBits, 96>(first, second);
#pragma unroll
  for (int i = 0; i < kBits; ++i) {
    if constexpr (kBits == 6) {
      if (i % 2 == 0) reinterpret_cast<uint32_t*>(to)[i / 2] = words[i / 2];
    } else {
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
  }
}

// The codes of a row of eight vectors, 3 bits each: a team of four lanes has two neighbouring
// vectors each, `lane` of them, 48 bits. Three lanes store words of 8 bytes, each with what it
// needs of the next lane's. All lanes of the warp call it; `row` is a multiple of 8, and nothing is
// stored without `real`.
__device__ inline void StoreRowOfThrees(const uint32_t (&high)[2], const uint32_t (&low)[2],
                                        uint32_t lane, bool real, uint8_t* row) {
  const uint64_t own =
      static_cast<uint64_t>(high[0] << 12 | low[0]) << 24 | (high[1] << 12 | low[1]);
  const uint64_t next =
      static_cast<uint64_t>(__shfl_down_sync(~0u, static_cast<uint32_t>(own >> 32), 1)) << 32 |
      __shfl_down_sync(~0u, static_cast<uint32_t>(own), 1);
  if (!real || lane == 3) return;
  const uint32_t shift = 16 * (lane + 1);
  const uint64_t word = own << shift | next >> (48 - shift);
  reinterpret_cast<uint2*>(row)[lane] =
      make_uint2(__byte_perm(static_cast<uint32_t>(word >> 32), 0, 0x0123),
                 __byte_perm(static_cast<uint32_t>(word), 0, 0x0123));
}

// A field on its way from memory: the words that hold it, untouched until Split, so that a thread
// waits for none of its loads before all are under way. Fields of a column have the same `skip`,
// at % 4: so do those whose distance is a multiple of 4 bytes.
template <int kBits>
struct PackedField {
  static constexpr int kWords = IsWhole(kBits) ? (kBits + 3) / 4 : kBits == 7 ? 3 : 2;
  uint32_t word[kWords];

  // The field at `at` bytes from `codes`, which is at a multiple of 16. Reads no word beyond the
  // one with the field's last byte.
  __device__ void Load(const uint8_t* codes, uint32_t at, uint32_t skip) {
    if constexpr (kBits == 1) {
      word[0] = __ldg(codes + at);
    } else if constexpr (kBits == 2) {
      word[0] = __ldg(reinterpret_cast<const uint16_t*>(codes + at));
    } else if constexpr (kBits == 4) {
      word[0] = __ldg(reinterpret_cast<const uint32_t*>(codes + at));
    } else if constexpr (kBits == 8) {
      const uint2 both = __ldg(reinterpret_cast<const uint2*>(codes + at));
      word[0] = both.x, word[1] = both.y;
    } else {
      const uint8_t* first = codes + (at - skip);
#pragma unroll
      for (uint32_t w = 0; w < kWords; ++w) {
        const uint32_t last = (skip + kBits - 1) / 4;  // word of the field
        word[w] = __ldg(reinterpret_cast<const uint32_t*>(first + 4 * min(w, last)));
      }
    }
  }
  // Four codes each, the first the most significant.
  __device__ void Split(uint32_t skip, uint32_t* high, uint32_t* low) const {
    if constexpr (kBits == 1) {
      *high = word[0] >> 4, *low = word[0] & 0xfu;
    } else if constexpr (kBits == 2) {
      *high = word[0] & 0xffu, *low = word[0] >> 8;
    } else if constexpr (kBits == 4) {
      *high = __byte_perm(word[0], 0, 0x4401), *low = __byte_perm(word[0], 0, 0x4423);
    } else if constexpr (kBits == 8) {
      *high = __byte_perm(word[0], 0, 0x0123), *low = __byte_perm(word[1], 0, 0x0123);
    } else {
      // Bytes from the field's first one on, most significant first.
      const uint32_t order = 0x0123u + 0x1111u * skip;
      const uint32_t first = __byte_perm(word[0], word[1], order);
      const uint32_t second = __byte_perm(word[1], kWords > 2 ? word[kWords - 1] : 0, order);
      *high = first >> (32 - 4 * kBits);
      *low = __funnelshift_l(second, first, 4 * kBits) >> (32 - 4 * kBits);
    }
  }
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_QUANT_FIELDS_CUH_
