// How the buffer of a sample lies in the message store: as bf16, or quantised itself to 2, 4 or 8
// bits with a scale a channel (AQ-SGD keeps Q(m) at both ends where memory is short).
//
// A delta codec always works on bf16: Open gives that, and Close puts it back. A quantised buffer
// is the body of quant(bits) of what was put back (README.md), so both ends, which put the same
// back, hold the same. The receiver computes with m + difference before that rounding. Thread: one
// owner (scratch inside).
#ifndef ISTHMUS_COMPRESS_BUFFER_FORMAT_H_
#define ISTHMUS_COMPRESS_BUFFER_FORMAT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compress/quant.h"
#include "compress/sample_codec.h"

namespace isthmus::compress {

class BufferFormat {
 public:
  // `bits`: CodecSpec.buffer_bits; 0: bf16.
  BufferFormat(int bits, const SampleShape& shape);

  // 16-bit words that a buffer takes in the store. Times 2: BufferBytes of one sample
  // (proto/codec_size.h).
  int64_t words() const { return words_; }

  // positions x hidden of bf16, to be changed, until the next Open. `whole`: all of it will be
  // written before Close, what is there now is not looked at.
  uint16_t* Open(uint16_t* stored, bool whole);
  // Puts what Open gave, now finite throughout, back into `stored`, which is still there.
  void Close();

 private:
  const SampleShape shape_;
  int64_t words_ = 0;
  std::unique_ptr<QuantCodec> quant_;  // null: bf16
  uint16_t* stored_ = nullptr;
  std::vector<uint16_t> opened_;
  std::string body_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFER_FORMAT_H_
