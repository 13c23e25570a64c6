// quant(b): the AQ-SGD quantiser as a sample codec; and sign: one symmetric bit whose scale is the
// mean magnitude. Body: the scales (bfloat16, little-endian), then the codes of all elements in row
// order, packed most significant bit first, padded with zero bits to a byte. Arithmetic:
// quantize.h.
//
// A NaN or inf spreads over its scale group as NaN and nowhere else: a gradient that is not finite
// stays visible to the receiver. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_QUANT_H_
#define ISTHMUS_COMPRESS_CODECS_QUANT_H_

#include <string>
#include <vector>

#include "compress/codecs/sample_codec.h"
#include "compress/simd/quantize.h"

namespace isthmus::compress {

class QuantCodec : public SampleCodec {
 public:
  QuantCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;

  // Delta coding in one pass over the memory, where the rounding is to nearest and the scale the
  // maximum. `buffer` is the sample's, updated.
  bool CanFuseDelta() const { return !spec_.stochastic() && rule_ == Rule::kMax; }
  // False: a difference is not finite; nothing is appended, and the buffer is to be forgotten.
  bool EncodeDelta(RowSource& in, BufferRows& buffer, std::string* out);
  // False, and nothing changed: a scale is not finite, which no encoder makes. `out` gets m +
  // difference in fp32.
  bool DecodeDelta(absl::string_view body, BufferRows& buffer, RowSink& out);

 private:
  enum class Rule { kMax, kRms, kMean };  // of a scale

  size_t body_bytes() const;
  // Fill scales_, of all channels or of row p. False if one of them is NaN.
  bool FindChannelScales(RowSource& in);
  bool FindRowScales(int64_t p, const float* row);
  bool FindChannelDeltaScales(RowSource& in, BufferRows& m);
  bool FindRowDeltaScales(int64_t p, const float* a, const uint16_t* m);
  bool ScalesFromMaxBits(size_t first);
  uint16_t ScaleOf(uint32_t max_bits, float sum, size_t n) const;
  void WriteScales(char* to) const;
  void ReadScales(absl::string_view body);
  // Of row p, out of scales_; rows in order.
  RowScales RowInverse(int64_t p);
  RowScales RowStep(int64_t p);
  RowScales Spread(int64_t p, bool inverse, std::vector<float>* row);

  const CodecSpec spec_;  // of a QUANT
  const Rule rule_;
  const SampleShape shape_;
  const size_t hidden_;
  const bool by_channel_;
  const size_t group_;       // elements that have a scale together; where not by channel
  const size_t row_scales_;  // scales of a row, then
  const uint64_t seed_;
  const Levels levels_;
  std::vector<uint16_t> scales_;
  std::vector<uint32_t> max_bits_;  // per channel, or per scale of a row
  std::vector<float> sums_;         // per channel: squares or magnitudes
  std::vector<float> inverse_row_, step_row_;
  std::vector<float> row_;
  std::vector<uint8_t> codes_;  // codes of a few rows, one a byte
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_QUANT_H_
