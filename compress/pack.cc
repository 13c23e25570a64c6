#include "compress/pack.h"

#include <cstring>

namespace isthmus::compress {
namespace {

inline uint64_t LoadBigEndian(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return __builtin_bswap64(word);
}

inline void StoreBigEndian(uint64_t word, uint8_t* p) {
  word = __builtin_bswap64(word);
  std::memcpy(p, &word, 8);
}

// Eight b-bit fields, one in each byte (first code in the top byte), to one field of 8b bits at the top of the word.
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
void Pack(const uint8_t* codes, size_t n, uint8_t* out) {
  const size_t groups = n / 8;
  size_t g = 0;
  for (; (groups - g) * b >= 8; ++g) StoreBigEndian(Squeeze<b>(LoadBigEndian(codes + 8 * g)), out + g * b);
  for (; g < groups; ++g) {  // the last groups: an 8-byte store would pass the end
    uint8_t bytes[8];
    StoreBigEndian(Squeeze<b>(LoadBigEndian(codes + 8 * g)), bytes);
    std::memcpy(out + g * b, bytes, b);
  }
  const size_t rest = n - 8 * groups;
  if (rest == 0) return;
  uint8_t padded[8] = {0};
  std::memcpy(padded, codes + 8 * groups, rest);
  uint8_t bytes[8];
  StoreBigEndian(Squeeze<b>(LoadBigEndian(padded)), bytes);
  std::memcpy(out + groups * b, bytes, PackedBytes(rest, b));
}

template <int b>
void Unpack(const uint8_t* in, size_t n, uint8_t* codes) {
  const size_t groups = n / 8;
  const size_t bytes = PackedBytes(n, b);
  size_t g = 0;
  for (; g < groups && g * b + 8 <= bytes; ++g) {
    StoreBigEndian(Spread<b>(LoadBigEndian(in + g * b)), codes + 8 * g);
  }
  for (; 8 * g < n; ++g) {
    const size_t rest = n - 8 * g < 8 ? n - 8 * g : 8;
    uint8_t padded[8] = {0};
    std::memcpy(padded, in + g * b, PackedBytes(rest, b));
    uint8_t fields[8];
    StoreBigEndian(Spread<b>(LoadBigEndian(padded)), fields);
    std::memcpy(codes + 8 * g, fields, rest);
  }
}

}  // namespace

void PackCodes(const uint8_t* codes, size_t n, int bits, uint8_t* out) {
  switch (bits) {
    case 1: return Pack<1>(codes, n, out);
    case 2: return Pack<2>(codes, n, out);
    case 3: return Pack<3>(codes, n, out);
    case 4: return Pack<4>(codes, n, out);
    case 5: return Pack<5>(codes, n, out);
    case 6: return Pack<6>(codes, n, out);
    case 7: return Pack<7>(codes, n, out);
    default: return Pack<8>(codes, n, out);
  }
}

void UnpackCodes(const uint8_t* in, size_t n, int bits, uint8_t* codes) {
  switch (bits) {
    case 1: return Unpack<1>(in, n, codes);
    case 2: return Unpack<2>(in, n, codes);
    case 3: return Unpack<3>(in, n, codes);
    case 4: return Unpack<4>(in, n, codes);
    case 5: return Unpack<5>(in, n, codes);
    case 6: return Unpack<6>(in, n, codes);
    case 7: return Unpack<7>(in, n, codes);
    default: return Unpack<8>(in, n, codes);
  }
}

}  // namespace isthmus::compress
