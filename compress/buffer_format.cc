#include "compress/buffer_format.h"

#include <cstring>

#include "absl/strings/string_view.h"
#include "compress/convert.h"
#include "proto/codec_size.h"

namespace isthmus::compress {
namespace {

CodecSpec DeltaOf(int bits) {
  CodecSpec delta;
  delta.set_kind(CodecSpec::DELTA);
  delta.set_buffer_bits(bits);
  return delta;
}

CodecSpec QuantOf(int bits) {
  CodecSpec quant;
  quant.set_kind(CodecSpec::QUANT);
  quant.set_bits(bits);
  return quant;
}

// Rows of a bf16 array.
class Bf16Rows : public RowSource, public RowSink {
 public:
  Bf16Rows(uint16_t* m, size_t hidden) : m_(m), row_(hidden) {}
  const float* Row(int64_t p) override {
    Bf16ToFloats(At(p), row_.size(), row_.data());
    return row_.data();
  }
  float* Begin(int64_t) override { return row_.data(); }
  void End(int64_t p) override { FloatsToBf16(row_.data(), row_.size(), At(p)); }

 private:
  uint16_t* At(int64_t p) { return m_ + static_cast<size_t>(p) * row_.size(); }

  uint16_t* m_;
  std::vector<float> row_;
};

}  // namespace

BufferFormat::BufferFormat(int bits, const SampleShape& shape)
    : shape_(shape), words_(BufferBytes(DeltaOf(bits), 1, shape.positions, shape.hidden) / 2) {
  if (bits == 0) return;
  quant_ = std::make_unique<QuantCodec>(QuantOf(bits), shape, 0);
  opened_.resize(static_cast<size_t>(shape.elements()));
}

uint16_t* BufferFormat::Open(uint16_t* stored, bool whole) {
  stored_ = stored;
  if (quant_ == nullptr) return stored;
  if (!whole) {
    Bf16Rows rows(opened_.data(), static_cast<size_t>(shape_.hidden));
    quant_->Decode({reinterpret_cast<const char*>(stored), static_cast<size_t>(2 * words_)}, rows);
  }
  return opened_.data();
}

void BufferFormat::Close() {
  if (quant_ == nullptr) return;
  Bf16Rows rows(opened_.data(), static_cast<size_t>(shape_.hidden));
  body_.clear();
  quant_->Encode(rows, SampleInfo(), &body_, nullptr);
  body_.resize(static_cast<size_t>(2 * words_));  // zeros up to a whole word
  if (!body_.empty()) std::memcpy(stored_, body_.data(), body_.size());
}

}  // namespace isthmus::compress
