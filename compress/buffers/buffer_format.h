// How the buffer of a sample lies in the message store: as bf16, or quantised itself to 2, 4 or 8
// bits with a scale a channel (AQ-SGD keeps Q(m) at both ends where memory is short).
//
// A delta codec always works on rows of bf16: Row gives one, opened when it is first asked for, so
// that it is worked on while in the cache; Close puts all back. A quantised buffer is the body of
// quant(bits) of what was put back (README.md), so both ends, which put the same back, hold the
// same. The receiver computes with m + difference before that rounding. Thread: one owner (scratch
// inside).
#ifndef ISTHMUS_COMPRESS_BUFFERS_BUFFER_FORMAT_H_
#define ISTHMUS_COMPRESS_BUFFERS_BUFFER_FORMAT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "compress/codecs/rows.h"
#include "compress/codecs/sample_codec.h"
#include "compress/simd/code_rows.h"
#include "compress/simd/quantize.h"

namespace isthmus::compress {

class BufferFormat : public BufferRows {
 public:
  // `bits`: CodecSpec.buffer_bits; 0: bf16.
  BufferFormat(int bits, const SampleShape& shape);

  // 16-bit words that a buffer takes in the store. Times 2: BufferBytes of one sample
  // (proto/codec/codec_size.h).
  int64_t words() const { return words_; }

  // A buffer to work on, until the next Open. `whole`: all of it will be written before Close, what
  // is there now is not looked at.
  void Open(uint16_t* stored, bool whole);
  uint16_t* Row(int64_t p) override;
  void MaxDifferenceInto(int64_t p, const float* a, uint32_t* max_bits) override;
  void Changed(int64_t p) override;
  // Puts the rows, all changed and now finite throughout, back into what Open was given, which is
  // still there.
  void Close();

 private:
  bool quantised() const { return levels_.has_value(); }
  uint16_t* At(int64_t p) { return rows_ + static_cast<size_t>(p) * hidden_; }

  const SampleShape shape_;
  const size_t hidden_;
  int64_t words_ = 0;
  std::optional<Levels> levels_;  // none: bf16
  uint16_t* stored_ = nullptr;
  uint16_t* rows_ = nullptr;  // stored_, or opened_

  // Of quantised ones.
  std::vector<uint16_t> opened_;
  int64_t next_row_ = 0;             // the first one that is not opened yet
  std::optional<CodeReader> codes_;  // of the rows from there on
  std::vector<uint8_t> read_, written_;
  std::vector<float> step_, inverse_;
  std::vector<uint16_t> largest_;  // |m| of each channel, in what has changed
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_BUFFER_FORMAT_H_
