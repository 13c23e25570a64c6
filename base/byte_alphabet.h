// The printable characters by which GPT-2's tokenizer files write bytes: a byte that is printable
// in Latin-1 as itself, the others as U+0100 and on, in their order. Thread: pure functions.
#ifndef ISTHMUS_BASE_BYTE_ALPHABET_H_
#define ISTHMUS_BASE_BYTE_ALPHABET_H_

#include <array>
#include <string>

namespace isthmus {

// The code point of each byte, all below U+0800.
inline std::array<int, 256> ByteAlphabet() {
  std::array<int, 256> written{};
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
    written[b] = printable ? b : next++;
  }
  return written;
}

// Such a code point as UTF-8.
inline std::string ByteCharacter(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

}  // namespace isthmus

#endif  // ISTHMUS_BASE_BYTE_ALPHABET_H_
