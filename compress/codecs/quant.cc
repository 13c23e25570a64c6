#include "compress/codecs/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "compress/simd/code_rows.h"
#include "compress/simd/quantize_delta.h"

namespace isthmus::compress {

namespace {

// Lanes of fp32, at most: the shorter tails of groups that are no multiple go faster spread out.
constexpr size_t kWidestVector = 16;

// What a `sign` is as a quantiser.
CodecSpec AsQuant(const CodecSpec& spec) {
  CodecSpec quant = spec;
  if (spec.kind() == CodecSpec::SIGN) {
    quant.set_bits(1);
    quant.set_symmetric(true);
  }
  return quant;
}

}  // namespace

QuantCodec::QuantCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed)
    : spec_(AsQuant(spec)),
      rule_(spec.kind() == CodecSpec::SIGN ? Rule::kMean
            : spec.rms_scale()             ? Rule::kRms
                                           : Rule::kMax),
      shape_(shape),
      hidden_(static_cast<size_t>(shape.hidden)),
      by_channel_(spec_.scale() == CodecSpec::PER_CHANNEL),
      group_(spec_.scale() == CodecSpec::PER_GROUP ? static_cast<size_t>(spec_.group()) : hidden_),
      row_scales_(spec_.scale() == CodecSpec::PER_GROUP ? (hidden_ + group_ - 1) / group_ : 1),
      seed_(seed),
      levels_(spec_.bits(), spec_.symmetric()) {
  scales_.resize(by_channel_ ? hidden_ : static_cast<size_t>(shape_.positions) * row_scales_);
  inverse_row_.resize(hidden_);
  step_row_.resize(hidden_);
}

size_t QuantCodec::body_bytes() const {
  return 2 * scales_.size() + PackedBytes(static_cast<size_t>(shape_.elements()), spec_.bits());
}

uint16_t QuantCodec::ScaleOf(uint32_t max_bits, float sum, size_t n) const {
  return rule_ == Rule::kRms ? ScaleOfRms(max_bits, sum, n) : ScaleOfMean(max_bits, sum, n);
}

bool QuantCodec::FindChannelScales(RowSource& in) {
  max_bits_.assign(hidden_, 0);
  sums_.assign(rule_ != Rule::kMax ? hidden_ : 0, 0.0f);
  for (int64_t p = 0; p < shape_.positions && hidden_ > 0; ++p) {
    const float* row = in.Row(p);
    MaxBitsInto(row, hidden_, max_bits_.data());
    for (size_t i = 0; i < sums_.size(); ++i)
      sums_[i] += rule_ == Rule::kRms ? row[i] * row[i] : std::fabs(row[i]);
  }
  if (rule_ == Rule::kMax) return ScalesFromMaxBits(0);
  for (size_t i = 0; i < sums_.size(); ++i)
    scales_[i] = ScaleOf(max_bits_[i], sums_[i], static_cast<size_t>(shape_.positions));
  return std::find(scales_.begin(), scales_.end(), kScaleNan) == scales_.end();
}

bool QuantCodec::FindRowScales(int64_t p, const float* row) {
  max_bits_.assign(row_scales_, 0);
  MaxBitsOfGroups(row, hidden_, group_, max_bits_.data());
  const size_t first = static_cast<size_t>(p) * row_scales_;
  const bool finite = ScalesFromMaxBits(first);
  if (rule_ == Rule::kMax) return finite;
  for (size_t i = 0; i < row_scales_; ++i) {
    const size_t at = i * group_, n = std::min(group_, hidden_ - at);
    scales_[first + i] =
        ScaleOf(max_bits_[i],
                rule_ == Rule::kRms ? SumOfSquares(row + at, n) : SumOfMagnitudes(row + at, n), n);
  }
  return finite;
}

bool QuantCodec::ScalesFromMaxBits(size_t first) {
  bool finite = true;
  for (size_t i = 0; i < max_bits_.size(); ++i) {
    const uint16_t scale = ScaleOfBits(max_bits_[i]);
    scales_[first + i] = scale;
    finite = finite && scale != kScaleNan;
  }
  return finite;
}

void QuantCodec::WriteScales(char* to) const {
  if (!scales_.empty()) std::memcpy(to, scales_.data(), 2 * scales_.size());
}

void QuantCodec::ReadScales(absl::string_view body) {
  if (!scales_.empty()) std::memcpy(scales_.data(), body.data(), 2 * scales_.size());
}

RowScales QuantCodec::Spread(int64_t p, bool inverse, std::vector<float>* row) {
  auto value = [&](size_t scale) {
    return inverse ? levels_.Inverse(scales_[scale]) : levels_.Step(scales_[scale]);
  };
  if (by_channel_) {  // the same for every row
    for (size_t i = 0; p == 0 && i < hidden_; ++i) (*row)[i] = value(i);
    return {row->data(), 1};
  }
  const size_t first = static_cast<size_t>(p) * row_scales_;
  if (group_ % kWidestVector == 0 || group_ >= hidden_) {
    for (size_t i = 0; i < row_scales_ && hidden_ > 0; ++i) (*row)[i] = value(first + i);
    return {row->data(), group_};
  }
  for (size_t i = 0; i < row_scales_; ++i) {
    const float v = value(first + i);
    std::fill(row->data() + i * group_, row->data() + std::min(hidden_, (i + 1) * group_), v);
  }
  return {row->data(), 1};
}

RowScales QuantCodec::RowInverse(int64_t p) { return Spread(p, true, &inverse_row_); }

RowScales QuantCodec::RowStep(int64_t p) { return Spread(p, false, &step_row_); }

void QuantCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) {
  bool finite = by_channel_ ? FindChannelScales(in) : true;
  char* to = Extend(out, body_bytes());
  CodeWriter writer(&codes_, hidden_, spec_.bits(), to + 2 * scales_.size());
  for (int64_t p = 0; p < shape_.positions; ++p) {
    const float* row = in.Row(p);
    if (!by_channel_) finite = FindRowScales(p, row);
    if (!finite) {  // what is not finite gets the code of zero; its scale says NaN
      row_.assign(row, row + hidden_);
      for (float& x : row_) x = std::isfinite(x) ? x : 0.0f;
      row = row_.data();
    }
    const RowScales inverse = RowInverse(p);
    uint8_t* codes = writer.Row();
    if (spec_.stochastic()) {
      QuantizeRowStochastic(levels_, row, inverse, hidden_, seed_, info.draw,
                            static_cast<uint64_t>(p) * hidden_, codes);
    } else {
      QuantizeRow(levels_, row, inverse, hidden_, codes);
    }
    if (rebuilt != nullptr) {
      DequantizeRow(levels_, codes, RowStep(p), hidden_, rebuilt->Begin(p));
      rebuilt->End(p);
    }
    writer.Commit();
  }
  writer.Finish();
  WriteScales(to);
}

absl::StatusOr<size_t> QuantCodec::Check(absl::string_view bytes) const {
  const size_t need = body_bytes();
  if (bytes.size() < need) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantised sample of ", bytes.size(), " bytes, needs ", need));
  }
  for (size_t i = 0; i < scales_.size(); ++i) {
    uint16_t scale;
    std::memcpy(&scale, bytes.data() + 2 * i, 2);
    if (!IsValidScale(scale)) {
      return absl::InvalidArgumentError(
          absl::StrCat("scale ", i, " is 0x", absl::Hex(scale), ", which no encoder makes"));
    }
  }
  return need;
}

void QuantCodec::Decode(absl::string_view body, RowSink& out) {
  ReadScales(body);
  CodeReader reader(&codes_, hidden_, shape_.positions, spec_.bits(),
                    body.data() + 2 * scales_.size());
  for (int64_t p = 0; p < shape_.positions; ++p) {
    DequantizeRow(levels_, reader.Row(), RowStep(p), hidden_, out.Begin(p));
    out.End(p);
  }
}

bool QuantCodec::FindChannelDeltaScales(RowSource& in, BufferRows& m) {
  max_bits_.assign(hidden_, 0);
  for (int64_t p = 0; p < shape_.positions; ++p)
    m.MaxDifferenceInto(p, in.Row(p), max_bits_.data());
  return ScalesFromMaxBits(0);
}

bool QuantCodec::FindRowDeltaScales(int64_t p, const float* a, const uint16_t* m) {
  max_bits_.assign(row_scales_, 0);
  MaxBitsOfDifferenceGroups(a, m, hidden_, group_, max_bits_.data());
  return ScalesFromMaxBits(static_cast<size_t>(p) * row_scales_);
}

bool QuantCodec::EncodeDelta(RowSource& in, BufferRows& buffer, std::string* out) {
  if (by_channel_ && !FindChannelDeltaScales(in, buffer)) return false;
  const size_t before = out->size();
  char* to = Extend(out, body_bytes());
  CodeWriter writer(&codes_, hidden_, spec_.bits(), to + 2 * scales_.size());
  for (int64_t p = 0; p < shape_.positions; ++p) {
    const float* a = in.Row(p);
    uint16_t* m = buffer.Row(p);
    if (!by_channel_ && !FindRowDeltaScales(p, a, m)) {
      out->resize(before);
      return false;
    }
    QuantizeDeltaRow(levels_, a, RowInverse(p), RowStep(p), hidden_, m, writer.Row());
    buffer.Changed(p);
    writer.Commit();
  }
  writer.Finish();
  WriteScales(to);
  return true;
}

bool QuantCodec::DecodeDelta(absl::string_view body, BufferRows& buffer, RowSink& out) {
  ReadScales(body);
  if (std::find(scales_.begin(), scales_.end(), kScaleNan) != scales_.end()) return false;
  CodeReader reader(&codes_, hidden_, shape_.positions, spec_.bits(),
                    body.data() + 2 * scales_.size());
  for (int64_t p = 0; p < shape_.positions; ++p) {
    DequantizeDeltaRow(levels_, reader.Row(), RowStep(p), hidden_, buffer.Row(p), out.Begin(p));
    buffer.Changed(p);
    out.End(p);
  }
  return true;
}

}  // namespace isthmus::compress
