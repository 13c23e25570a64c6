#include "compress/codecs/low_rank.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "base/status.h"

namespace isthmus::compress {
namespace {

// Sums in double over many short columns: r is at most 128, so this costs little beside the
// products with T.
double Dot(const float* a, const float* b, int64_t rows, int64_t stride) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) sum += double{a[i * stride]} * b[i * stride];
  return sum;
}

}  // namespace

void Orthonormalize(std::vector<float>* a, int64_t rows, int64_t columns) {
  constexpr double kDependent = 1e-5;  // of the column's length: what is left is rounding
  for (int64_t c = 0; c < columns; ++c) {
    float* column = a->data() + c;
    const double before = std::sqrt(Dot(column, column, rows, columns));
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < c; ++k) {
        const float* other = a->data() + k;
        const double along = Dot(column, other, rows, columns);
        for (int64_t i = 0; i < rows; ++i)
          column[i * columns] =
              static_cast<float>(column[i * columns] - along * other[i * columns]);
      }
    }
    const double after = std::sqrt(Dot(column, column, rows, columns));
    const bool dependent = !(after > kDependent * before) || !(after > 1e-30);
    const double scale = dependent ? 0.0 : 1.0 / after;
    for (int64_t i = 0; i < rows; ++i)
      column[i * columns] = dependent ? 0.0f : static_cast<float>(column[i * columns] * scale);
  }
}

int64_t LowRankCodec::Rank(const CodecSpec& spec, const SampleShape& shape) {
  return std::min<int64_t>({spec.rank(), shape.positions, shape.hidden});
}

LowRankCodec::LowRankCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed,
                           std::unique_ptr<SampleCodec> left, std::unique_ptr<SampleCodec> right)
    : shape_(shape),
      rank_(Rank(spec, shape)),
      seed_(seed),
      left_(std::move(left)),
      right_(std::move(right)) {
  warm_.assign(static_cast<size_t>(shape_.hidden * rank_), 0.0f);
  left_factor_.resize(static_cast<size_t>(shape_.positions * rank_));
  right_factor_.resize(static_cast<size_t>(rank_ * shape_.hidden));
}

// Q of the last sample made orthonormal, with random columns instead of those that vanished.
// Orthonormal, so that T Q has the size of T: its square would leave the range of fp32 for tiny
// gradients.
void LowRankCodec::RefreshWarmStart() {
  Orthonormalize(&warm_, shape_.hidden, rank_);
  bool refreshed = false;
  for (int64_t k = 0; k < rank_; ++k) {
    const double length = Dot(warm_.data() + k, warm_.data() + k, shape_.hidden, rank_);
    if (length > 0.5 && std::isfinite(length)) continue;
    refreshed = true;
    ++draws_;
    for (int64_t h = 0; h < shape_.hidden; ++h) {
      warm_[static_cast<size_t>(h * rank_ + k)] =
          static_cast<float>(RandomUniform(seed_, draws_, static_cast<uint64_t>(h)) - 0.5);
    }
  }
  if (refreshed) Orthonormalize(&warm_, shape_.hidden, rank_);
}

void LowRankCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out,
                          RowSink* rebuilt) {
  const size_t r = static_cast<size_t>(rank_), hidden = static_cast<size_t>(shape_.hidden);
  RefreshWarmStart();
  bool finite = true;
  for (int64_t p = 0; p < shape_.positions && r > 0; ++p) {  // P := T Q
    const float* row = in.Row(p);
    double sums[128] = {0};  // where columns of P are nearly dependent, the rounding of these sums
                             // is what limits the result
    for (size_t h = 0; h < hidden; ++h) {
      finite = finite && std::isfinite(row[h]);
      const double x = row[h];
      const float* q = warm_.data() + h * r;
      for (size_t k = 0; k < r; ++k) sums[k] += x * q[k];
    }
    for (size_t k = 0; k < r; ++k)
      left_factor_[static_cast<size_t>(p) * r + k] = static_cast<float>(sums[k]);
  }
  if (finite) {
    Orthonormalize(&left_factor_, shape_.positions, rank_);
  } else {
    std::fill(left_factor_.begin(), left_factor_.end(), std::nanf(""));
  }
  std::fill(right_factor_.begin(), right_factor_.end(), 0.0f);
  for (int64_t p = 0; p < shape_.positions && r > 0; ++p) {  // Q^T := P^T T
    const float* row = in.Row(p);
    const float* from = left_factor_.data() + static_cast<size_t>(p) * r;
    for (size_t k = 0; k < r; ++k) {
      const float x = from[k];
      float* to = right_factor_.data() + k * hidden;
      for (size_t h = 0; h < hidden; ++h) to[h] += x * row[h];
    }
  }
  for (size_t k = 0; k < r; ++k) {
    for (size_t h = 0; h < hidden; ++h) warm_[h * r + k] = right_factor_[k * hidden + h];
  }
  ArrayRows left(left_factor_.data(), rank_), right(right_factor_.data(), shape_.hidden);
  left_->Encode(
      left, info, out,
      rebuilt != nullptr ? &left : nullptr);  // in place: the factors as the receiver has them
  right_->Encode(right, info, out, rebuilt != nullptr ? &right : nullptr);
  if (rebuilt != nullptr) Multiply(*rebuilt);
}

absl::StatusOr<size_t> LowRankCodec::Check(absl::string_view bytes) const {
  ASSIGN_OR_RETURN(const size_t left, left_->Check(bytes));
  ASSIGN_OR_RETURN(const size_t right, right_->Check(bytes.substr(left)));
  return left + right;
}

void LowRankCodec::Decode(absl::string_view body, RowSink& out) {
  const absl::StatusOr<size_t> left_bytes = left_->Check(body);  // checked before: not an error
  if (!left_bytes.ok()) return;
  ArrayRows left(left_factor_.data(), rank_), right(right_factor_.data(), shape_.hidden);
  left_->Decode(body.substr(0, *left_bytes), left);
  right_->Decode(body.substr(*left_bytes), right);
  Multiply(out);
}

void LowRankCodec::SaveState(StateWriter* to) {
  to->Array(warm_);
  to->Put(draws_);
}

void LowRankCodec::LoadState(StateReader* from) {
  from->Array(warm_.size(), "warm start of the low rank", &warm_);
  draws_ = from->Get<uint64_t>("warm start of the low rank");
}

void LowRankCodec::Multiply(RowSink& out) const {
  const size_t r = static_cast<size_t>(rank_), hidden = static_cast<size_t>(shape_.hidden);
  for (int64_t p = 0; p < shape_.positions; ++p) {
    float* row = out.Begin(p);
    std::fill_n(row, hidden, 0.0f);
    const float* from = left_factor_.data() + static_cast<size_t>(p) * r;
    for (size_t k = 0; k < r; ++k) {
      const float x = from[k];
      const float* q = right_factor_.data() + k * hidden;
      for (size_t h = 0; h < hidden; ++h) row[h] += x * q[h];
    }
    out.End(p);
  }
}

}  // namespace isthmus::compress
