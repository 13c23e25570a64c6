#include "compress/codecs/feedback.h"

#include <algorithm>
#include <cmath>

namespace isthmus::compress {
namespace {

// x + e.
class CorrectedRows : public RowSource {
 public:
  CorrectedRows(RowSource& x, const float* e, size_t hidden) : x_(x), e_(e), row_(hidden) {}
  const float* Row(int64_t p) override {
    const float* x = x_.Row(p);
    const float* e = e_ + static_cast<size_t>(p) * row_.size();
    for (size_t i = 0; i < row_.size(); ++i) row_[i] = x[i] + e[i];
    return row_.data();
  }

 private:
  RowSource& x_;
  const float* e_;
  std::vector<float> row_;
};

// Takes the rows that the receiver has; e := x + e - row.
class ResidualSink : public RowSink {
 public:
  ResidualSink(RowSource& x, float* e, size_t hidden, RowSink* out)
      : x_(x), e_(e), out_(out), row_(hidden) {}
  float* Begin(int64_t) override { return row_.data(); }
  void End(int64_t p) override {
    const float* x = x_.Row(p);
    float* e = e_ + static_cast<size_t>(p) * row_.size();
    for (size_t i = 0; i < row_.size(); ++i) {
      const float left = (x[i] + e[i]) - row_[i];
      e[i] = std::isfinite(left) ? left : 0.0f;
    }
    if (out_ == nullptr) return;
    std::copy(row_.begin(), row_.end(), out_->Begin(p));
    out_->End(p);
  }

 private:
  RowSource& x_;
  float* e_;
  RowSink* out_;
  std::vector<float> row_;
};

}  // namespace

void FeedbackCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out,
                           RowSink* rebuilt) {
  std::vector<float>& e = residuals_[{lazy_ ? 0 : info.micro, info.index}];
  e.resize(static_cast<size_t>(shape_.elements()), 0.0f);
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  CorrectedRows corrected(in, e.data(), hidden);
  ResidualSink residual(in, e.data(), hidden, rebuilt);
  inner_->Encode(corrected, info, out, &residual);
}

absl::Span<const float> FeedbackCodec::residual(int64_t index) const {
  const auto found = lazy_ ? residuals_.find({0, index}) : residuals_.end();
  return found == residuals_.end() ? absl::Span<const float>() : found->second;
}

void FeedbackCodec::SaveState(StateWriter* to) {
  to->Put<uint64_t>(residuals_.size());
  for (const auto& [place, e] : residuals_) {
    to->Put(place.first);
    to->Put(place.second);
    to->Array(e);
  }
  inner_->SaveState(to);
}

ResidualPlace LoadResidualPlace(StateReader* from, bool lazy, const ResidualPlace& last) {
  ResidualPlace place;
  place.first = from->Get<int32_t>("residuals");
  place.second = from->Get<int64_t>("residuals");
  if (from->ok() && (place <= last || place.second < 0 || (lazy && place.first != 0)))
    from->Fail(absl::InvalidArgumentError("the state has a residual of no place"));
  return place;
}

void FeedbackCodec::LoadState(StateReader* from) {
  ResidualPlace place{-1, -1};
  const uint64_t count = from->Get<uint64_t>("residuals");
  for (uint64_t i = 0; i < count && from->ok(); ++i) {
    place = LoadResidualPlace(from, lazy_, place);
    from->Array(static_cast<size_t>(shape_.elements()), "residuals", &residuals_[place]);
  }
  inner_->LoadState(from);
}

}  // namespace isthmus::compress
