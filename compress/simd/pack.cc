#include "compress/simd/pack.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/simd/pack.cc"
#include "hwy/foreach_target.h"  // compiles this file once a target
#include "hwy/highway.h"

#ifndef ISTHMUS_COMPRESS_PACK_WORDS_
#define ISTHMUS_COMPRESS_PACK_WORDS_
namespace isthmus::compress {
namespace pack_words {

inline uint64_t LoadBigEndian(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return __builtin_bswap64(word);
}

inline void StoreBigEndian(uint64_t word, uint8_t* p) {
  word = __builtin_bswap64(word);
  std::memcpy(p, &word, 8);
}

// Eight b-bit fields, one in each byte (first code in the top byte), to one field of 8b bits at the
// top of the word.
template <int b>
inline uint64_t Squeeze(uint64_t w) {
  if constexpr (b == 8) return w;
  constexpr uint64_t kPair = 0x00ff00ff00ff00ffu;
  constexpr uint64_t kQuad = 0x0000ffff0000ffffu;
  w = (w & kPair) | ((w & ~kPair) >> (8 - b));
  w = (w & kQuad) | ((w & ~kQuad) >> (16 - 2 * b));
  w = (w & 0xffffffffu) | ((w >> 32) << (4 * b));
  return w << (64 - 8 * b);
}

template <int b>
inline uint64_t Spread(uint64_t w) {
  if constexpr (b == 8) return w;
  constexpr uint64_t kHalf = (uint64_t{1} << (4 * b)) - 1;
  constexpr uint64_t kQuad = ((uint64_t{1} << (2 * b)) - 1) * 0x0000000100000001u;
  constexpr uint64_t kPair = ((uint64_t{1} << b) - 1) * 0x0001000100010001u;
  w >>= 64 - 8 * b;
  w = (w & kHalf) | ((w >> (4 * b)) << 32);
  w = (w & kQuad) | ((w & (kQuad << (2 * b))) << (16 - 2 * b));
  w = (w & kPair) | ((w & (kPair << b)) << (8 - b));
  return w;
}

template <int b>
inline void PackWord(const uint8_t* codes, size_t n, uint8_t* out) {  // up to 8 codes
  uint8_t padded[8] = {0}, bytes[8];
  std::memcpy(padded, codes, n);
  StoreBigEndian(Squeeze<b>(LoadBigEndian(padded)), bytes);
  std::memcpy(out, bytes, PackedBytes(n, b));
}

template <int b>
inline void UnpackWord(const uint8_t* in, size_t n, uint8_t* codes) {
  uint8_t padded[8] = {0}, fields[8];
  std::memcpy(padded, in, PackedBytes(n, b));
  StoreBigEndian(Spread<b>(LoadBigEndian(padded)), fields);
  std::memcpy(codes, fields, n);
}

}  // namespace pack_words
}  // namespace isthmus::compress
#endif

HWY_BEFORE_NAMESPACE();
namespace isthmus::compress::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Blocks of 16 bytes (two words) side by side, as many as the vectors hold, at most two.
using D8 = hn::CappedTag<uint8_t, 32>;
using D16 = hn::Repartition<uint16_t, D8>;
using D32 = hn::Repartition<uint32_t, D8>;
using D64 = hn::Repartition<uint64_t, D8>;
using DBlock = hn::FixedTag<uint8_t, 16>;

// In each block, 16 codes, the first in the lowest byte, to 2b bytes at the low end. In each word
// the first code becomes the most significant field; the shuffle then takes the words' b low bytes,
// most significant first.
template <int b>
HWY_INLINE hn::Vec<D8> SqueezeBlocks(hn::Vec<D8> codes, hn::Vec<D8> order) {
  const auto bytes = hn::BitCast(D16(), codes);
  const auto pairs = hn::BitCast(
      D32(),
      hn::Or(hn::ShiftLeft<b>(hn::And(bytes, hn::Set(D16(), 0xff))), hn::ShiftRight<8>(bytes)));
  const auto quads =
      hn::BitCast(D64(), hn::Or(hn::ShiftLeft<2 * b>(hn::And(pairs, hn::Set(D32(), 0xffff))),
                                hn::ShiftRight<16>(pairs)));
  const auto words = hn::Or(hn::ShiftLeft<4 * b>(hn::And(quads, hn::Set(D64(), 0xffffffffu))),
                            hn::ShiftRight<32>(quads));
  return hn::TableLookupBytesOr0(hn::BitCast(D8(), words), order);
}

template <int b>
HWY_INLINE hn::Vec<D8> SpreadBlocks(hn::Vec<D8> packed, hn::Vec<D8> order) {
  const auto words = hn::BitCast(D64(), hn::TableLookupBytesOr0(packed, order));
  const auto quads = hn::BitCast(
      D32(),
      hn::Or(hn::ShiftRight<4 * b>(words),
             hn::ShiftLeft<32>(hn::And(words, hn::Set(D64(), (uint64_t{1} << (4 * b)) - 1)))));
  const auto pairs = hn::BitCast(
      D16(), hn::Or(hn::ShiftRight<2 * b>(quads),
                    hn::ShiftLeft<16>(hn::And(quads, hn::Set(D32(), (1u << (2 * b)) - 1)))));
  return hn::BitCast(D8(), hn::Or(hn::ShiftRight<b>(pairs),
                                  hn::ShiftLeft<8>(hn::And(pairs, hn::Set(D16(), (1u << b) - 1)))));
}

// The low 2b bytes of each block, one block after the other. Up to 16 bytes are stored from each
// block's place: the next overwrites what is too much.
template <int b>
HWY_INLINE void StoreBlocks(hn::Vec<D8> v, uint8_t* out) {
#if HWY_MAX_BYTES >= 32
  hn::StoreU(hn::LowerHalf(DBlock(), v), DBlock(), out);
  hn::StoreU(hn::UpperHalf(DBlock(), v), DBlock(), out + 2 * b);
#else
  hn::StoreU(v, D8(), out);
#endif
}

template <int b>
HWY_INLINE hn::Vec<D8> LoadBlocks(const uint8_t* in) {
#if HWY_MAX_BYTES >= 32
  return hn::Combine(D8(), hn::LoadU(DBlock(), in + 2 * b), hn::LoadU(DBlock(), in));
#else
  return hn::LoadU(D8(), in);
#endif
}

// Widths that divide a byte need neither words nor a shuffle's table: a pair of fields is a lane of
// twice the width.
using W8 = hn::ScalableTag<uint8_t>;
using W16 = hn::Repartition<uint16_t, W8>;
using H8 = hn::Half<W8>;

// Bytes of b bits each to half as many of 2b bits.
template <int b>
HWY_INLINE hn::Vec<W8> JoinPairs(hn::Vec<W8> first, hn::Vec<W8> second) {
  const W8 d8;
  const auto join = [d8](hn::Vec<W8> v) HWY_ATTR {
    const auto pairs = hn::BitCast(W16(), v);
    return hn::BitCast(d8, hn::Or(hn::ShiftLeft<b>(pairs), hn::ShiftRight<8>(pairs)));
  };
  return hn::ConcatEven(d8, join(second), join(first));
}

template <int b>
HWY_INLINE hn::Vec<W8> SplitPairs(hn::Vec<H8> v) {
  const auto pairs = hn::PromoteTo(W16(), v);
  const auto low = hn::And(pairs, hn::Set(W16(), (1u << b) - 1));
  return hn::BitCast(W8(), hn::Or(hn::ShiftRight<b>(pairs), hn::ShiftLeft<8>(low)));
}

// How many codes they did, from the first on.
template <int b>
HWY_INLINE size_t PackPairs(const uint8_t* codes, size_t n, uint8_t* out) {
  const W8 d8;
  const size_t lanes = hn::Lanes(d8), step = 8 / b * lanes;
  size_t i = 0;
  for (; i + step <= n; i += step, out += lanes) {
    const auto halves = [=](size_t at) HWY_ATTR {
      return JoinPairs<b>(hn::LoadU(d8, codes + at), hn::LoadU(d8, codes + at + lanes));
    };
    if constexpr (b == 4) {
      hn::StoreU(halves(i), d8, out);
    } else {
      hn::StoreU(JoinPairs<4>(halves(i), halves(i + 2 * lanes)), d8, out);
    }
  }
  return i;
}

template <int b>
HWY_INLINE size_t UnpackPairs(const uint8_t* in, size_t n, uint8_t* codes) {
  const W8 d8;
  const size_t lanes = hn::Lanes(d8), step = 4 / b * lanes;
  size_t i = 0;
  for (; i + step <= n; i += step, in += lanes / 2) {
    const auto halves = SplitPairs<4>(hn::LoadU(H8(), in));
    if constexpr (b == 4) {
      hn::StoreU(halves, d8, codes + i);
    } else {
      hn::StoreU(SplitPairs<b>(hn::LowerHalf(H8(), halves)), d8, codes + i);
      hn::StoreU(SplitPairs<b>(hn::UpperHalf(H8(), halves)), d8, codes + i + lanes);
    }
  }
  return i;
}

// Where each byte of the packed string comes from (or, spreading, of the words): 0x80 for none.
template <int b>
void Orders(uint8_t* squeeze, uint8_t* spread) {
  std::memset(squeeze, 0x80, 16);
  std::memset(spread, 0x80, 16);
  for (int word = 0; word < 2; ++word) {
    for (int i = 0; i < b; ++i) {
      squeeze[word * b + i] = static_cast<uint8_t>(8 * word + b - 1 - i);
      spread[8 * word + b - 1 - i] = static_cast<uint8_t>(word * b + i);
    }
  }
}
#endif

template <int b>
void Pack(const uint8_t* codes, size_t n, uint8_t* out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (b == 2 || b == 4) i = PackPairs<b>(codes, n, out);
  HWY_ALIGN uint8_t squeeze[16], spread[16];
  Orders<b>(squeeze, spread);
  const auto order = hn::LoadDup128(D8(), squeeze);
  const size_t lanes = hn::Lanes(D8()), bytes = PackedBytes(n, b);
  const size_t reach = (lanes / 16 - 1) * 2 * b + 16;  // bytes that a store touches
  for (; i + lanes <= n && i / 8 * b + reach <= bytes; i += lanes) {
    StoreBlocks<b>(SqueezeBlocks<b>(hn::LoadU(D8(), codes + i), order), out + i / 8 * b);
  }
#endif
  for (; i < n; i += 8) pack_words::PackWord<b>(codes + i, n - i < 8 ? n - i : 8, out + i / 8 * b);
}

template <int b>
void Unpack(const uint8_t* in, size_t n, uint8_t* codes) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (b == 2 || b == 4) i = UnpackPairs<b>(in, n, codes);
  HWY_ALIGN uint8_t squeeze[16], spread[16];
  Orders<b>(squeeze, spread);
  const auto order = hn::LoadDup128(D8(), spread);
  const size_t lanes = hn::Lanes(D8()), bytes = PackedBytes(n, b);
  const size_t reach = (lanes / 16 - 1) * 2 * b + 16;
  for (; i + lanes <= n && i / 8 * b + reach <= bytes; i += lanes) {
    hn::StoreU(SpreadBlocks<b>(LoadBlocks<b>(in + i / 8 * b), order), D8(), codes + i);
  }
#endif
  for (; i < n; i += 8) pack_words::UnpackWord<b>(in + i / 8 * b, n - i < 8 ? n - i : 8, codes + i);
}

void PackCodes(const uint8_t* codes, size_t n, int bits, uint8_t* out) {
  switch (bits) {
    case 1:
      return Pack<1>(codes, n, out);
    case 2:
      return Pack<2>(codes, n, out);
    case 3:
      return Pack<3>(codes, n, out);
    case 4:
      return Pack<4>(codes, n, out);
    case 5:
      return Pack<5>(codes, n, out);
    case 6:
      return Pack<6>(codes, n, out);
    case 7:
      return Pack<7>(codes, n, out);
    default:
      std::memcpy(out, codes, n);
  }
}

void UnpackCodes(const uint8_t* in, size_t n, int bits, uint8_t* codes) {
  switch (bits) {
    case 1:
      return Unpack<1>(in, n, codes);
    case 2:
      return Unpack<2>(in, n, codes);
    case 3:
      return Unpack<3>(in, n, codes);
    case 4:
      return Unpack<4>(in, n, codes);
    case 5:
      return Unpack<5>(in, n, codes);
    case 6:
      return Unpack<6>(in, n, codes);
    case 7:
      return Unpack<7>(in, n, codes);
    default:
      std::memcpy(codes, in, n);
  }
}

}  // namespace isthmus::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::compress {

HWY_EXPORT(PackCodes);
HWY_EXPORT(UnpackCodes);

void PackCodes(const uint8_t* codes, size_t n, int bits, uint8_t* out) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(PackCodes)(codes, n, bits, out);
}

void UnpackCodes(const uint8_t* in, size_t n, int bits, uint8_t* codes) {
  if (n > 0) HWY_DYNAMIC_DISPATCH(UnpackCodes)(in, n, bits, codes);
}

}  // namespace isthmus::compress
#endif  // HWY_ONCE
