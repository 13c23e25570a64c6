// quant(b): the AQ-SGD quantiser as a sample codec; and sign: one symmetric bit whose scale is the
// mean magnitude. Body: the scales (bfloat16, little-endian), then the codes of all elements in row
// order, packed most significant bit first, padded with zero bits to a byte. Arithmetic:
// quantize.h.
//
// A NaN or inf spreads over its scale group as NaN and nowhere else: a gradient that is not finite
// stays visible to the receiver. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_QUANT_H_
#define ISTHMUS_COMPRESS_QUANT_H_

#include <string>
#include <vector>

#include "compress/quantize.h"
#include "compress/sample_codec.h"

namespace isthmus::compress {

class QuantCodec : public SampleCodec {
 public:
  QuantCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed);

  void Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) override;
  absl::StatusOr<size_t> Check(absl::string_view bytes) const override;
  void Decode(absl::string_view body, RowSink& out) override;

  // Delta coding in one pass over the memory, where the rounding is to nearest and the scale the
  // maximum. `m` is the sample's buffer, updated.
  bool CanFuseDelta() const { return !spec_.stochastic() && rule_ == Rule::kMax; }
  // False, and nothing appended or changed: a difference is not finite.
  bool EncodeDelta(RowSource& in, uint16_t* m, std::string* out);
  // False, and nothing changed: a scale is not finite, which no encoder makes. `out` gets m +
  // difference in fp32.
  bool DecodeDelta(absl::string_view body, uint16_t* m, RowSink& out);

 private:
  enum class Rule { kMax, kRms, kMean };  // of a scale
  class CodeWriter;
  class CodeReader;

  size_t scale_count() const;
  size_t body_bytes() const;
  // Fills scales_. False if one of them is NaN.
  bool FindScales(RowSource& in);
  bool FindDeltaScales(RowSource& in, const uint16_t* m);
  bool ScalesFromMaxBits();
  uint16_t ScaleOf(uint32_t max_bits, float sum, size_t n) const;
  void WriteScales(std::string* out) const;
  void ReadScales(absl::string_view body);
  // One value an element of row p, out of scales_.
  const float* RowInverse(int64_t p);
  const float* RowStep(int64_t p);
  void Spread(int64_t p, bool inverse, std::vector<float>* row);

  const CodecSpec spec_;  // of a QUANT
  const Rule rule_;
  const SampleShape shape_;
  const uint64_t seed_;
  const Levels levels_;
  std::vector<uint16_t> scales_;
  std::vector<uint32_t> max_bits_;  // per scale
  std::vector<float> sums_;         // per channel: squares or magnitudes
  std::vector<float> inverse_row_, step_row_;
  std::vector<float> row_;
  std::vector<uint8_t> codes_;  // codes of a few rows, one a byte
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_QUANT_H_
