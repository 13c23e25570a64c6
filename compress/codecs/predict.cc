#include "compress/codecs/predict.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/simd/quantize.h"

namespace isthmus::compress {
namespace {

constexpr double kDefaultRate = 0.05;

// x - prediction.
class UnpredictedRows : public RowSource {
 public:
  UnpredictedRows(RowSource& x, const std::vector<float>& prediction, size_t hidden)
      : x_(x), prediction_(prediction), row_(hidden) {}
  const float* Row(int64_t p) override {
    const float* x = x_.Row(p);
    const float* predicted = prediction_.data() + static_cast<size_t>(p) * row_.size();
    for (size_t i = 0; i < row_.size(); ++i) row_[i] = x[i] - predicted[i];
    return row_.data();
  }

 private:
  RowSource& x_;
  const std::vector<float>& prediction_;
  std::vector<float> row_;
};

// Takes differences; keeps prediction + difference in `sample` and passes it on.
class PredictedSink : public RowSink {
 public:
  PredictedSink(const std::vector<float>& prediction, size_t hidden, float* sample, RowSink* out)
      : prediction_(prediction), sample_(sample), out_(out), row_(hidden) {}
  float* Begin(int64_t) override { return row_.data(); }
  void End(int64_t p) override {
    const size_t at = static_cast<size_t>(p) * row_.size();
    float* y = sample_ + at;
    for (size_t i = 0; i < row_.size(); ++i) y[i] = prediction_[at + i] + row_[i];
    if (out_ == nullptr) return;
    std::copy_n(y, row_.size(), out_->Begin(p));
    out_->End(p);
  }

 private:
  const std::vector<float>& prediction_;
  float* sample_;
  RowSink* out_;
  std::vector<float> row_;
};

// The gain g with the least |x - g prediction|, in units of kGainUnit.
uint8_t BestGain(const float* x, const float* prediction, size_t n) {
  double product = 0, square = 0;
  for (size_t i = 0; i < n; ++i) {
    product += double{x[i]} * prediction[i];
    square += double{prediction[i]} * prediction[i];
  }
  const double gain = product / (square * kGainUnit);
  return gain > 0 ? static_cast<uint8_t>(std::lround(std::min(gain, 255.0))) : 0;  // NaN: 0
}

// `sum` += y - p; `position_sum` += `left` := y - (t + p).
void AddRow(size_t n, const float* __restrict y, const float* __restrict t,
            const float* __restrict p, float* __restrict sum, float* __restrict position_sum,
            float* __restrict left) {
  for (size_t i = 0; i < n; ++i) {
    sum[i] += y[i] - p[i];
    left[i] = y[i] - (t[i] + p[i]);
    position_sum[i] += left[i];
  }
}

// `sum` += left; left -= c.
void AddLeft(size_t n, const float* __restrict c, float* __restrict sum, float* __restrict left) {
  for (size_t i = 0; i < n; ++i) {
    sum[i] += left[i];
    left[i] -= c[i];
  }
}

}  // namespace

float PredictRate(const CodecSpec& spec) {
  return static_cast<float>(spec.rate() > 0 ? spec.rate() : kDefaultRate);
}

uint32_t TokenContexts::Token(absl::Span<const uint32_t> tokens, int64_t position,
                              size_t back) const {
  const int64_t p = position + (next ? 1 : 0) - static_cast<int64_t>(back);
  return p >= 0 && p < positions ? tokens[static_cast<size_t>(p)] : kNoToken;
}

uint32_t TokenContexts::Slot(absl::Span<const uint32_t> tokens, int64_t position,
                             size_t level) const {
  uint64_t key = level;
  for (size_t back = 0; back < level + 2; ++back) key = Mix64(key ^ Token(tokens, position, back));
  return static_cast<uint32_t>(key & static_cast<uint64_t>(slots - 1));
}

size_t ContextLevels(const CodecSpec& spec, const PredictorRows& rows) {
  return rows.slots > 0 ? static_cast<size_t>(std::max(spec.context(), 1) - 1) : 0;
}

void WriteTokenIds(const std::vector<uint32_t>& ids, std::string* out) {
  const bool wide = std::any_of(ids.begin(), ids.end(), [](uint32_t t) { return t > 0xffff; });
  *Extend(out, 1) = wide ? 4 : 2;
  char* to = Extend(out, ids.size() * (wide ? 4 : 2));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint16_t narrow = static_cast<uint16_t>(ids[i]);
    if (wide) {
      std::memcpy(to + 4 * i, &ids[i], 4);
    } else {
      std::memcpy(to + 2 * i, &narrow, 2);
    }
  }
}

size_t ReadTokenIds(absl::string_view body, int64_t positions, std::vector<uint32_t>* ids) {
  const size_t width = static_cast<uint8_t>(body[0]), first = ids->size();
  ids->resize(first + static_cast<size_t>(positions), 0);
  for (size_t i = first; i < ids->size(); ++i)
    std::memcpy(&(*ids)[i], body.data() + 1 + width * (i - first), width);
  return 1 + width * static_cast<size_t>(positions);
}

Predictor::Predictor(const CodecSpec& spec, const SampleShape& shape, int64_t bytes)
    : hidden_(static_cast<size_t>(shape.hidden)),
      rate_(PredictRate(spec)),
      rows_(PredictorRowsOf(spec, bytes, shape.positions, shape.hidden)),
      keys_{shape.positions, spec.next(), rows_.slots},
      all_(hidden_, rate_, 0, 1),
      tokens_(hidden_, rate_, 0, static_cast<size_t>(rows_.tokens - 1)),
      positions_(static_cast<size_t>(rows_.positions) * hidden_),
      zero_(hidden_),
      position_sums_(positions_.size()),
      position_counts_(static_cast<size_t>(rows_.positions)) {
  // A context seen once is believed by half.
  for (size_t level = 0; level < ContextLevels(spec, rows_); ++level)
    contexts_.emplace_back(hidden_, rate_, 1, static_cast<size_t>(rows_.slots));
}

const float* Predictor::TokenRow(uint32_t token) const {
  if (const float* mean = tokens_.Find(token); mean != nullptr) return mean;
  const float* mean = all_.Find(0);
  return mean != nullptr ? mean : zero_.data();
}

void Predictor::Predict(absl::Span<const uint32_t> tokens, int64_t position, float* row) const {
  const size_t at = static_cast<size_t>(position);
  const float* t = TokenRow(keys_.Token(tokens, position, 0));
  const float* p = positions_.empty() ? zero_.data() : positions_.data() + at * hidden_;
  for (size_t i = 0; i < hidden_; ++i) row[i] = t[i] + p[i];
  for (size_t level = 0; level < contexts_.size(); ++level) {
    const float* c = contexts_[level].Find(keys_.Slot(tokens, position, level));
    for (size_t i = 0; c != nullptr && i < hidden_; ++i) row[i] += c[i];
  }
}

void Predictor::Learn(absl::Span<const uint32_t> tokens, int64_t position, const float* y) {
  if (MaxBits(y, hidden_) > kTooLargeToLearn) return;
  const size_t at = static_cast<size_t>(position);
  const bool by_position = !positions_.empty();
  const uint32_t token = keys_.Token(tokens, position, 0);
  left_.resize(2 * hidden_);
  float* left = left_.data();
  AddRow(hidden_, y, TokenRow(token), by_position ? &positions_[at * hidden_] : zero_.data(),
         tokens_.Add(token), by_position ? &position_sums_[at * hidden_] : left + hidden_, left);
  if (by_position) ++position_counts_[at];
  for (size_t level = 0; level < contexts_.size(); ++level) {
    const uint32_t slot = keys_.Slot(tokens, position, level);
    const float* c = contexts_[level].Find(slot);
    AddLeft(hidden_, c != nullptr ? c : zero_.data(), contexts_[level].Add(slot), left);
  }
}

void Predictor::EndFrame() {
  all_.AddFrame(tokens_);
  all_.EndFrame();
  tokens_.EndFrame();
  for (MeanTable& table : contexts_) table.EndFrame();
  for (size_t p = 0; p < position_counts_.size(); ++p) {
    if (position_counts_[p] == 0) continue;
    const float count = static_cast<float>(position_counts_[p]);
    for (size_t i = p * hidden_; i < (p + 1) * hidden_; ++i)
      positions_[i] += rate_ * (position_sums_[i] / count);
    position_counts_[p] = 0;
  }
  std::fill(position_sums_.begin(), position_sums_.end(), 0.0f);
}

uint64_t Predictor::Hash() const {
  uint64_t hash = Hash64(positions_.data(), 4 * positions_.size());
  hash = Mix64(hash ^ all_.Hash()) ^ tokens_.Hash();
  for (const MeanTable& table : contexts_) hash = Mix64(hash) ^ table.Hash();
  return hash;
}

int64_t Predictor::bytes() const {
  int64_t bytes = static_cast<int64_t>(4 * positions_.size()) + all_.bytes() + tokens_.bytes();
  for (const MeanTable& table : contexts_) bytes += table.bytes();
  return bytes;
}

void Predictor::Save(StateWriter* to) const {
  to->Array(positions_);
  all_.Save(to);
  tokens_.Save(to);
  for (const MeanTable& table : contexts_) table.Save(to);
}

void Predictor::Load(StateReader* from) {
  from->Array(positions_.size(), "means of positions", &positions_);
  all_.Load(from);
  tokens_.Load(from);
  for (MeanTable& table : contexts_) table.Load(from);
}

PredictCodec::PredictCodec(const CodecSpec& spec, const SampleShape& shape, int64_t bytes,
                           std::unique_ptr<SampleCodec> inner)
    : shape_(shape), inner_(std::move(inner)), predictor_(spec, shape, bytes) {
  gains_.resize(static_cast<size_t>(shape.positions));
  prediction_.resize(static_cast<size_t>(shape.elements()));
  rebuilt_.resize(static_cast<size_t>(shape.elements()));
}

void PredictCodec::Predict(RowSource* x) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  for (size_t p = 0; p < gains_.size(); ++p) {
    float* row = prediction_.data() + p * hidden;
    predictor_.Predict(token_ids_, static_cast<int64_t>(p), row);
    if (x != nullptr) gains_[p] = BestGain(x->Row(static_cast<int64_t>(p)), row, hidden);
    const float gain = kGainUnit * gains_[p];
    for (size_t i = 0; i < hidden; ++i) row[i] *= gain;
  }
}

void PredictCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out,
                          RowSink* rebuilt) {
  token_ids_.assign(info.tokens.begin(), info.tokens.end());
  token_ids_.resize(static_cast<size_t>(shape_.positions), kNoToken);
  WriteTokenIds(token_ids_, out);
  Predict(&in);
  std::copy(gains_.begin(), gains_.end(), Extend(out, gains_.size()));
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  UnpredictedRows difference(in, prediction_, hidden);
  PredictedSink sink(prediction_, hidden, rebuilt_.data(), rebuilt);
  inner_->Encode(difference, info, out, &sink);
}

absl::StatusOr<size_t> PredictCodec::Check(absl::string_view bytes) const {
  if (bytes.empty())
    return absl::InvalidArgumentError("predict: the frame ends before the token ids");
  const uint8_t width = static_cast<uint8_t>(bytes[0]);
  if (width != 2 && width != 4)
    return absl::InvalidArgumentError(absl::StrCat("predict: token ids of ", width, " bytes"));
  const size_t header = 1 + (size_t{width} + 1) * static_cast<size_t>(shape_.positions);
  if (bytes.size() < header)
    return absl::InvalidArgumentError("predict: the frame ends in the token ids or gains");
  ASSIGN_OR_RETURN(const size_t inner, inner_->Check(bytes.substr(header)));
  return header + inner;
}

void PredictCodec::Decode(absl::string_view body, RowSink& out) {
  token_ids_.clear();
  body.remove_prefix(ReadTokenIds(body, shape_.positions, &token_ids_));
  std::copy_n(body.begin(), gains_.size(), gains_.begin());
  body.remove_prefix(gains_.size());
  Predict(nullptr);
  PredictedSink sink(prediction_, static_cast<size_t>(shape_.hidden), rebuilt_.data(), &out);
  inner_->Decode(body, sink);
}

void PredictCodec::SaveState(StateWriter* to) {
  predictor_.Save(to);
  inner_->SaveState(to);
}

void PredictCodec::LoadState(StateReader* from) {
  predictor_.Load(from);
  inner_->LoadState(from);
}

void PredictCodec::Settle(bool used) {
  if (!used) return;
  for (int64_t p = 0; p < shape_.positions; ++p) {
    predictor_.Learn(token_ids_, p, rebuilt_.data() + static_cast<size_t>(p * shape_.hidden));
  }
}

}  // namespace isthmus::compress
