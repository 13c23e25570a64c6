#include "compress/buffers/buffer_format.h"

#include <cstring>

#include "compress/simd/quantize_delta.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress {
namespace {

CodecSpec DeltaOf(int bits) {
  CodecSpec delta;
  delta.set_kind(CodecSpec::DELTA);
  delta.set_buffer_bits(bits);
  return delta;
}

}  // namespace

BufferFormat::BufferFormat(int bits, const SampleShape& shape)
    : shape_(shape),
      hidden_(static_cast<size_t>(shape.hidden)),
      words_(BufferBytes(DeltaOf(bits), 1, shape.positions, shape.hidden) / 2) {
  if (bits == 0) return;
  levels_.emplace(bits, false);
  opened_.resize(static_cast<size_t>(shape.elements()));
  step_.resize(hidden_);
  inverse_.resize(hidden_);
}

void BufferFormat::Open(uint16_t* stored, bool whole) {
  stored_ = stored;
  rows_ = quantised() ? opened_.data() : stored;
  if (!quantised()) return;
  largest_.assign(hidden_, 0);
  next_row_ = whole ? shape_.positions : 0;
  if (whole) return;
  for (size_t i = 0; i < hidden_; ++i) step_[i] = levels_->Step(stored[i]);
  codes_.emplace(&read_, hidden_, shape_.positions, levels_->bits,
                 reinterpret_cast<const char*>(stored + hidden_));
}

uint16_t* BufferFormat::Row(int64_t p) {
  for (; quantised() && next_row_ <= p; ++next_row_)
    DequantizeToBf16(*levels_, codes_->Row(), step_.data(), hidden_, At(next_row_));
  return At(p);
}

void BufferFormat::MaxDifferenceInto(int64_t p, const float* a, uint32_t* max_bits) {
  if (!quantised() || p != next_row_) return MaxBitsOfDifferenceInto(a, Row(p), hidden_, max_bits);
  DequantizeToBf16Against(*levels_, codes_->Row(), step_.data(), a, hidden_, At(p), max_bits);
  ++next_row_;
}

void BufferFormat::Changed(int64_t p) {
  if (quantised()) MaxOfBf16Into(At(p), hidden_, largest_.data());
}

void BufferFormat::Close() {
  if (!quantised()) return;
  for (size_t i = 0; i < hidden_; ++i) {
    const uint16_t scale = ScaleOfBits(uint32_t{largest_[i]} << 16);
    stored_[i] = scale;
    inverse_[i] = levels_->Inverse(scale);
  }
  char* codes = reinterpret_cast<char*>(stored_ + hidden_);
  const size_t bytes = PackedBytes(static_cast<size_t>(shape_.elements()), levels_->bits);
  CodeWriter writer(&written_, hidden_, levels_->bits, codes);
  for (int64_t p = 0; p < shape_.positions; ++p) {
    QuantizeBf16(*levels_, At(p), inverse_.data(), hidden_, writer.Row());
    writer.Commit();
  }
  writer.Finish();
  if (bytes % 2 != 0) codes[bytes] = 0;  // up to a whole word
}

}  // namespace isthmus::compress
