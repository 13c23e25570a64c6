// Packs codes of 1 to 8 bits, one a byte, into a bit string: most significant bit first, exactly
// `bits` bits an element.
//
//   bits = 3, codes 7 0 6 5:   111 000 110 101 -> bytes 11100011 0101(0000)
//
// Eight codes make `bits` whole bytes, so the work is done on 64-bit words, two of them in a
// vector: three shift-and-mask steps double the width of the fields, and a byte shuffle puts the
// words' bytes together. Run-time dispatch by Highway; the ends of arrays go word by word. The bits
// after the last code are zero. Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_SIMD_PACK_H_
#define ISTHMUS_COMPRESS_SIMD_PACK_H_

#include <cstddef>
#include <cstdint>

namespace isthmus::compress {

constexpr size_t PackedBytes(size_t n, int bits) { return (n * static_cast<size_t>(bits) + 7) / 8; }

// Writes PackedBytes(n, bits) bytes. Each code is under 2^bits.
void PackCodes(const uint8_t* codes, size_t n, int bits, uint8_t* out);

// Reads PackedBytes(n, bits) bytes.
void UnpackCodes(const uint8_t* in, size_t n, int bits, uint8_t* codes);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SIMD_PACK_H_
