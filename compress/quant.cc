#include "compress/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "compress/pack.h"

namespace isthmus::compress {

// Rows of codes on their way to the bit string: rows need not end at a byte, so up to 7 codes wait
// for the next row.
class QuantCodec::CodeWriter {
 public:
  CodeWriter(std::vector<uint8_t>* codes, size_t hidden, int bits, char* to)
      : codes_(codes), hidden_(hidden), bits_(bits), to_(reinterpret_cast<uint8_t*>(to)) {
    codes_->resize(hidden_ + 8);
  }
  uint8_t* Row() { return codes_->data() + waiting_; }
  void Commit() {
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

class QuantCodec::CodeReader {
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

namespace {

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
      seed_(seed),
      levels_(spec_.bits(), spec_.symmetric()) {
  scales_.resize(scale_count());
  inverse_row_.resize(static_cast<size_t>(shape_.hidden));
  step_row_.resize(static_cast<size_t>(shape_.hidden));
}

size_t QuantCodec::scale_count() const {
  switch (spec_.scale()) {
    case CodecSpec::PER_TOKEN:
      return static_cast<size_t>(shape_.positions);
    case CodecSpec::PER_GROUP:
      return static_cast<size_t>(shape_.positions *
                                 ((shape_.hidden + spec_.group() - 1) / spec_.group()));
    default:
      return static_cast<size_t>(shape_.hidden);
  }
}

size_t QuantCodec::body_bytes() const {
  return 2 * scale_count() + PackedBytes(static_cast<size_t>(shape_.elements()), spec_.bits());
}

uint16_t QuantCodec::ScaleOf(uint32_t max_bits, float sum, size_t n) const {
  return rule_ == Rule::kRms ? ScaleOfRms(max_bits, sum, n) : ScaleOfMean(max_bits, sum, n);
}

bool QuantCodec::FindScales(RowSource& in) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  const bool by_channel = spec_.scale() == CodecSpec::PER_CHANNEL;
  max_bits_.assign(scales_.size(), 0);
  sums_.assign(by_channel && rule_ != Rule::kMax ? hidden : 0, 0.0f);
  const size_t group =
      spec_.scale() == CodecSpec::PER_GROUP ? static_cast<size_t>(spec_.group()) : hidden;
  size_t next = 0;
  for (int64_t p = 0; p < shape_.positions && hidden > 0; ++p) {
    const float* row = in.Row(p);
    if (by_channel) {
      MaxBitsInto(row, hidden, max_bits_.data());
      for (size_t i = 0; i < sums_.size(); ++i)
        sums_[i] += rule_ == Rule::kRms ? row[i] * row[i] : std::fabs(row[i]);
      continue;
    }
    MaxBitsOfGroups(row, hidden, group, max_bits_.data() + next);
    for (size_t at = 0; at < hidden; at += group, ++next) {
      if (rule_ == Rule::kMax) continue;
      const size_t n = std::min(group, hidden - at);
      scales_[next] = ScaleOf(
          max_bits_[next],
          rule_ == Rule::kRms ? SumOfSquares(row + at, n) : SumOfMagnitudes(row + at, n), n);
    }
  }
  if (rule_ == Rule::kMax || hidden == 0) return ScalesFromMaxBits();
  for (size_t i = 0; i < sums_.size(); ++i)
    scales_[i] = ScaleOf(max_bits_[i], sums_[i], static_cast<size_t>(shape_.positions));
  return std::find(scales_.begin(), scales_.end(), kScaleNan) == scales_.end();
}

bool QuantCodec::ScalesFromMaxBits() {
  bool finite = true;
  for (size_t i = 0; i < scales_.size(); ++i) {
    scales_[i] = ScaleOfBits(max_bits_[i]);
    finite = finite && scales_[i] != kScaleNan;
  }
  return finite;
}

void QuantCodec::WriteScales(std::string* out) const {
  char* to = Extend(out, 2 * scales_.size());
  if (!scales_.empty()) std::memcpy(to, scales_.data(), 2 * scales_.size());
}

void QuantCodec::ReadScales(absl::string_view body) {
  if (!scales_.empty()) std::memcpy(scales_.data(), body.data(), 2 * scales_.size());
}

void QuantCodec::Spread(int64_t p, bool inverse, std::vector<float>* row) {
  const size_t hidden = row->size();
  auto value = [&](size_t scale) {
    return inverse ? levels_.Inverse(scales_[scale]) : levels_.Step(scales_[scale]);
  };
  if (spec_.scale() == CodecSpec::PER_CHANNEL) {
    if (p > 0) return;  // the same for every row
    for (size_t i = 0; i < hidden; ++i) (*row)[i] = value(i);
  } else if (spec_.scale() == CodecSpec::PER_TOKEN) {
    std::fill(row->begin(), row->end(), value(static_cast<size_t>(p)));
  } else {
    const size_t group = static_cast<size_t>(spec_.group());
    size_t scale = static_cast<size_t>(p) * ((hidden + group - 1) / group);
    for (size_t at = 0; at < hidden; at += group, ++scale) {
      std::fill(row->begin() + static_cast<std::ptrdiff_t>(at),
                row->begin() + static_cast<std::ptrdiff_t>(std::min(at + group, hidden)),
                value(scale));
    }
  }
}

const float* QuantCodec::RowInverse(int64_t p) {
  Spread(p, true, &inverse_row_);
  return inverse_row_.data();
}

const float* QuantCodec::RowStep(int64_t p) {
  Spread(p, false, &step_row_);
  return step_row_.data();
}

void QuantCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  const bool finite = FindScales(in);
  WriteScales(out);
  char* to = Extend(out, PackedBytes(static_cast<size_t>(shape_.elements()), spec_.bits()));
  CodeWriter writer(&codes_, hidden, spec_.bits(), to);
  for (int64_t p = 0; p < shape_.positions; ++p) {
    const float* row = in.Row(p);
    if (!finite) {  // what is not finite gets the code of zero; its scale says NaN
      row_.assign(row, row + hidden);
      for (float& x : row_) x = std::isfinite(x) ? x : 0.0f;
      row = row_.data();
    }
    const float* inverse = RowInverse(p);
    uint8_t* codes = writer.Row();
    if (spec_.stochastic()) {
      QuantizeRowStochastic(levels_, row, inverse, hidden, seed_, info.draw,
                            static_cast<uint64_t>(p) * hidden, codes);
    } else {
      QuantizeRow(levels_, row, inverse, hidden, codes);
    }
    if (rebuilt != nullptr) {
      DequantizeRow(levels_, codes, RowStep(p), hidden, rebuilt->Begin(p));
      rebuilt->End(p);
    }
    writer.Commit();
  }
  writer.Finish();
}

absl::StatusOr<size_t> QuantCodec::Check(absl::string_view bytes) const {
  const size_t need = body_bytes();
  if (bytes.size() < need) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantised sample of ", bytes.size(), " bytes, needs ", need));
  }
  for (size_t i = 0; i < scale_count(); ++i) {
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
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  ReadScales(body);
  CodeReader reader(&codes_, hidden, shape_.positions, spec_.bits(),
                    body.data() + 2 * scales_.size());
  for (int64_t p = 0; p < shape_.positions; ++p) {
    DequantizeRow(levels_, reader.Row(), RowStep(p), hidden, out.Begin(p));
    out.End(p);
  }
}

bool QuantCodec::FindDeltaScales(RowSource& in, const uint16_t* m) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  if (spec_.scale() == CodecSpec::PER_CHANNEL) {
    max_bits_.assign(scales_.size(), 0);
    for (int64_t p = 0; p < shape_.positions; ++p) {
      MaxBitsOfDifferenceInto(in.Row(p), m + static_cast<size_t>(p) * hidden, hidden,
                              max_bits_.data());
    }
    return ScalesFromMaxBits();
  }
  std::vector<float> row_bits(hidden);  // bits of magnitudes are magnitudes
  const size_t group =
      spec_.scale() == CodecSpec::PER_GROUP ? static_cast<size_t>(spec_.group()) : hidden;
  max_bits_.assign(scales_.size(), 0);
  uint32_t* next = max_bits_.data();
  for (int64_t p = 0; p < shape_.positions && hidden > 0; ++p) {
    std::fill(row_bits.begin(), row_bits.end(), 0.0f);
    MaxBitsOfDifferenceInto(in.Row(p), m + static_cast<size_t>(p) * hidden, hidden,
                            reinterpret_cast<uint32_t*>(row_bits.data()));
    MaxBitsOfGroups(row_bits.data(), hidden, group, next);
    next += (hidden + group - 1) / group;
  }
  return ScalesFromMaxBits();
}

bool QuantCodec::EncodeDelta(RowSource& in, uint16_t* m, std::string* out) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  if (!FindDeltaScales(in, m)) return false;
  WriteScales(out);
  char* to = Extend(out, PackedBytes(static_cast<size_t>(shape_.elements()), spec_.bits()));
  CodeWriter writer(&codes_, hidden, spec_.bits(), to);
  for (int64_t p = 0; p < shape_.positions; ++p) {
    QuantizeDeltaRow(levels_, in.Row(p), RowInverse(p), RowStep(p), hidden,
                     m + static_cast<size_t>(p) * hidden, writer.Row());
    writer.Commit();
  }
  writer.Finish();
  return true;
}

bool QuantCodec::DecodeDelta(absl::string_view body, uint16_t* m, RowSink& out) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  ReadScales(body);
  if (std::find(scales_.begin(), scales_.end(), kScaleNan) != scales_.end()) return false;
  CodeReader reader(&codes_, hidden, shape_.positions, spec_.bits(),
                    body.data() + 2 * scales_.size());
  for (int64_t p = 0; p < shape_.positions; ++p) {
    DequantizeDeltaRow(levels_, reader.Row(), RowStep(p), hidden,
                       m + static_cast<size_t>(p) * hidden, out.Begin(p));
    out.End(p);
  }
  return true;
}

}  // namespace isthmus::compress
