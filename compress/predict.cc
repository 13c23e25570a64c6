#include "compress/predict.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/quantize.h"

namespace isthmus::compress {
namespace {

constexpr uint32_t kTooLarge = (60 + 127) << 23;  // bits of 2^60
constexpr double kDefaultRate = 0.05;

// x - prediction.
class UnpredictedRows : public RowSource {
 public:
  UnpredictedRows(RowSource& x, const Predictor& predictor, const std::vector<uint32_t>& tokens,
                  size_t hidden)
      : x_(x), predictor_(predictor), tokens_(tokens), row_(hidden) {}
  const float* Row(int64_t p) override {
    const float* x = x_.Row(p);
    predictor_.Predict(tokens_[static_cast<size_t>(p)], p, row_.data());
    for (size_t i = 0; i < row_.size(); ++i) row_[i] = x[i] - row_[i];
    return row_.data();
  }

 private:
  RowSource& x_;
  const Predictor& predictor_;
  const std::vector<uint32_t>& tokens_;
  std::vector<float> row_;
};

// Takes differences; keeps prediction + difference in `sample` and passes it on.
class PredictedSink : public RowSink {
 public:
  PredictedSink(const Predictor& predictor, const std::vector<uint32_t>& tokens, size_t hidden,
                float* sample, RowSink* out)
      : predictor_(predictor), tokens_(tokens), sample_(sample), out_(out), row_(hidden) {}
  float* Begin(int64_t) override { return row_.data(); }
  void End(int64_t p) override {
    float* y = sample_ + static_cast<size_t>(p) * row_.size();
    predictor_.Predict(tokens_[static_cast<size_t>(p)], p, y);
    for (size_t i = 0; i < row_.size(); ++i) y[i] += row_[i];
    if (out_ == nullptr) return;
    std::copy_n(y, row_.size(), out_->Begin(p));
    out_->End(p);
  }

 private:
  const Predictor& predictor_;
  const std::vector<uint32_t>& tokens_;
  float* sample_;
  RowSink* out_;
  std::vector<float> row_;
};

}  // namespace

Predictor::Predictor(const SampleShape& shape, double rate, int64_t bytes)
    : shape_(shape), hidden_(static_cast<size_t>(shape.hidden)), rate_(static_cast<float>(rate)) {
  const int64_t row_bytes = std::max<int64_t>(4 * shape.hidden, 1);
  int64_t rows = bytes / row_bytes;
  if (rows > shape.positions) {
    positions_.assign(static_cast<size_t>(shape.elements()), 0.0f);
    rows -= shape.positions;
  }
  most_slots_ = static_cast<size_t>(std::max<int64_t>(rows, 1));
  tokens_.assign(hidden_, 0.0f);
  updates_.assign(1, 0);
  sums_.resize(1);
  sums_[0].sum.assign(hidden_, 0.0f);
  position_sums_.assign(positions_.size(), 0.0f);
  position_counts_.assign(positions_.empty() ? 0 : static_cast<size_t>(shape.positions), 0);
}

const float* Predictor::TokenRow(uint32_t token) const {
  const auto slot = slots_.find(token);
  return tokens_.data() + (slot == slots_.end() ? 0 : slot->second) * hidden_;
}

void Predictor::Predict(uint32_t token, int64_t position, float* row) const {
  const float* t = TokenRow(token);
  if (positions_.empty()) {
    std::copy_n(t, hidden_, row);
    return;
  }
  const float* p = positions_.data() + static_cast<size_t>(position) * hidden_;
  for (size_t i = 0; i < hidden_; ++i) row[i] = t[i] + p[i];
}

void Predictor::Learn(uint32_t token, int64_t position, const float* y) {
  if (MaxBits(y, hidden_) > kTooLarge) return;
  size_t own = 0;
  if (token != kNoToken) {
    const auto [found, is_new] = sum_of_.emplace(token, sums_.size());
    own = found->second;
    if (is_new) {
      sums_.emplace_back();
      sums_.back().token = token;
      sums_.back().sum.assign(hidden_, 0.0f);
    }
  }
  const size_t at = static_cast<size_t>(position) * hidden_;
  const bool by_position = !positions_.empty();
  float* all = sums_[0].sum.data();
  float* mine = sums_[own].sum.data();
  const float* t = TokenRow(token);
  for (size_t i = 0; i < hidden_; ++i) {
    const float p = by_position ? positions_[at + i] : 0.0f;
    const float z = y[i] - p;
    all[i] += z;
    if (own != 0) mine[i] += z;
    if (by_position) position_sums_[at + i] += y[i] - (t[i] + p);
  }
  ++sums_[0].count;
  if (own != 0) ++sums_[own].count;
  if (by_position) ++position_counts_[static_cast<size_t>(position)];
}

void Predictor::Move(const Sum& sum, size_t slot) {
  float* t = tokens_.data() + slot * hidden_;
  const uint32_t updates = ++updates_[slot];
  const float rate = std::max(rate_, 1.0f / static_cast<float>(updates));
  const float count = static_cast<float>(sum.count);
  for (size_t i = 0; i < hidden_; ++i) t[i] += rate * (sum.sum[i] / count - t[i]);
}

void Predictor::EndFrame() {
  for (size_t s = 0; s < sums_.size(); ++s) {
    if (sums_[s].count == 0) continue;
    size_t slot = 0;
    if (s > 0) {
      const auto found = slots_.find(sums_[s].token);
      if (found != slots_.end()) {
        slot = found->second;
      } else if (updates_.size() < most_slots_) {
        slot = updates_.size();
        slots_.emplace(sums_[s].token, slot);
        updates_.push_back(0);
        tokens_.resize(tokens_.size() + hidden_, 0.0f);
      } else {
        continue;
      }
    }
    Move(sums_[s], slot);
  }
  for (size_t p = 0; p < position_counts_.size(); ++p) {
    if (position_counts_[p] == 0) continue;
    const float count = static_cast<float>(position_counts_[p]);
    for (size_t i = p * hidden_; i < (p + 1) * hidden_; ++i)
      positions_[i] += rate_ * (position_sums_[i] / count);
    position_counts_[p] = 0;
  }
  std::fill(position_sums_.begin(), position_sums_.end(), 0.0f);
  sums_.resize(1);
  sums_[0].count = 0;
  std::fill(sums_[0].sum.begin(), sums_[0].sum.end(), 0.0f);
  sum_of_.clear();
}

uint64_t Predictor::Hash() const {
  uint64_t hash =
      Hash64(tokens_.data(), 4 * tokens_.size(), Hash64(positions_.data(), 4 * positions_.size()));
  hash = Hash64(updates_.data(), 4 * updates_.size(), hash);
  for (const auto& [token, slot] : slots_) hash += Mix64((uint64_t{token} << 32) | slot);
  return hash;
}

PredictCodec::PredictCodec(const CodecSpec& spec, const SampleShape& shape, int64_t bytes,
                           std::unique_ptr<SampleCodec> inner)
    : shape_(shape),
      inner_(std::move(inner)),
      predictor_(shape, spec.rate() > 0 ? spec.rate() : kDefaultRate, bytes) {
  rebuilt_.resize(static_cast<size_t>(shape.elements()));
}

void PredictCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out,
                          RowSink* rebuilt) {
  token_ids_.assign(info.tokens.begin(), info.tokens.end());
  token_ids_.resize(static_cast<size_t>(shape_.positions), kNoToken);
  const bool wide =
      std::any_of(token_ids_.begin(), token_ids_.end(), [](uint32_t t) { return t > 0xffff; });
  *Extend(out, 1) = wide ? 4 : 2;
  char* to = Extend(out, token_ids_.size() * (wide ? 4 : 2));
  for (size_t i = 0; i < token_ids_.size(); ++i) {
    const uint16_t narrow = static_cast<uint16_t>(token_ids_[i]);
    if (wide) {
      std::memcpy(to + 4 * i, &token_ids_[i], 4);
    } else {
      std::memcpy(to + 2 * i, &narrow, 2);
    }
  }
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  UnpredictedRows difference(in, predictor_, token_ids_, hidden);
  PredictedSink sink(predictor_, token_ids_, hidden, rebuilt_.data(), rebuilt);
  inner_->Encode(difference, info, out, &sink);
}

absl::StatusOr<size_t> PredictCodec::Check(absl::string_view bytes) const {
  if (bytes.empty())
    return absl::InvalidArgumentError("predict: the frame ends before the token ids");
  const uint8_t width = static_cast<uint8_t>(bytes[0]);
  if (width != 2 && width != 4)
    return absl::InvalidArgumentError(absl::StrCat("predict: token ids of ", width, " bytes"));
  const size_t header = 1 + size_t{width} * static_cast<size_t>(shape_.positions);
  if (bytes.size() < header)
    return absl::InvalidArgumentError("predict: the frame ends in the token ids");
  ASSIGN_OR_RETURN(const size_t inner, inner_->Check(bytes.substr(header)));
  return header + inner;
}

void PredictCodec::Decode(absl::string_view body, RowSink& out) {
  const size_t width = static_cast<uint8_t>(body[0]);
  token_ids_.assign(static_cast<size_t>(shape_.positions), 0);
  for (size_t i = 0; i < token_ids_.size(); ++i)
    std::memcpy(&token_ids_[i], body.data() + 1 + width * i, width);
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  PredictedSink sink(predictor_, token_ids_, hidden, rebuilt_.data(), &out);
  inner_->Decode(body.substr(1 + width * token_ids_.size()), sink);
}

void PredictCodec::Settle(bool used) {
  if (!used) return;
  for (int64_t p = 0; p < shape_.positions; ++p) {
    predictor_.Learn(token_ids_[static_cast<size_t>(p)], p,
                     rebuilt_.data() + static_cast<size_t>(p * shape_.hidden));
  }
}

}  // namespace isthmus::compress
