// Rows of codes, one a byte, to and from one bit string (pack.h).
//
// Rows need not end at a byte, so up to 7 codes wait for the next row. The scratch is the caller's,
// who keeps it from one sample to the next. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_SIMD_CODE_ROWS_H_
#define ISTHMUS_COMPRESS_SIMD_CODE_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "compress/simd/pack.h"

namespace isthmus::compress {

// Fill Row(), then Commit(); after the last one, Finish().
class CodeWriter {
 public:
  CodeWriter(std::vector<uint8_t>* codes, size_t hidden, int bits, char* to)
      : codes_(codes), hidden_(hidden), bits_(bits), to_(reinterpret_cast<uint8_t*>(to)) {
    codes_->resize(hidden_ + 8);
  }
  uint8_t* Row() { return bits_ == 8 ? to_ : codes_->data() + waiting_; }
  void Commit() {
    if (bits_ == 8) {  // nothing to pack: written in place
      to_ += hidden_;
      return;
    }
    const size_t n = waiting_ + hidden_;
    const size_t whole = n / 8 * 8;
    PackCodes(codes_->data(), whole, bits_, to_);
    to_ += whole / 8 * static_cast<size_t>(bits_);
    waiting_ = n - whole;
    if (whole > 0) std::memmove(codes_->data(), codes_->data() + whole, waiting_);
  }
  void Finish() { PackCodes(codes_->data(), waiting_, bits_, to_); }

 private:
  std::vector<uint8_t>* codes_;
  const size_t hidden_;
  const int bits_;
  uint8_t* to_;
  size_t waiting_ = 0;
};

// Rows of codes out of the bit string, in order.
class CodeReader {
 public:
  CodeReader(std::vector<uint8_t>* codes, size_t hidden, int64_t positions, int bits,
             const char* from)
      : codes_(codes),
        hidden_(hidden),
        left_(hidden * static_cast<size_t>(positions)),
        bits_(bits),
        from_(reinterpret_cast<const uint8_t*>(from)) {
    codes_->resize(hidden_ + 16);
  }
  const uint8_t* Row() {
    if (bits_ == 8) {  // nothing to unpack: read in place
      const uint8_t* row = from_;
      from_ += hidden_;
      return row;
    }
    uint8_t* codes = codes_->data();
    if (waiting_ > 0) std::memmove(codes, codes + start_, waiting_);
    start_ = 0;
    if (waiting_ < hidden_) {
      const size_t n = std::min(left_, (hidden_ - waiting_ + 7) / 8 * 8);
      UnpackCodes(from_, n, bits_, codes + waiting_);
      from_ += n / 8 * static_cast<size_t>(bits_);
      left_ -= n;
      waiting_ += n;
    }
    start_ = hidden_;
    waiting_ -= hidden_;
    return codes;
  }

 private:
  std::vector<uint8_t>* codes_;
  const size_t hidden_;
  size_t left_;  // codes not yet unpacked
  const int bits_;
  const uint8_t* from_;
  size_t start_ = 0, waiting_ = 0;  // codes unpacked but not yet handed out
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SIMD_CODE_ROWS_H_
