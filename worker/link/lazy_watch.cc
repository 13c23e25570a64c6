#include "worker/link/lazy_watch.h"

#include <algorithm>
#include <cmath>

namespace isthmus::worker {
namespace {

constexpr size_t kMostSteps = 64;  // whose means wait to be taken

// One in so many positions is looked at.
int64_t Stride(const TensorDims& d) {
  return (d.positions + LazyWatch::kMostPositions - 1) / LazyWatch::kMostPositions;
}

int64_t Looked(const TensorDims& d) {
  const int64_t stride = std::max<int64_t>(Stride(d), 1);
  return (d.positions + stride - 1) / stride;
}

}  // namespace

void LazyWatch::ForRows(const TensorDims& d,
                        const std::function<void(int64_t, int64_t)>& row) const {
  const int64_t stride = Stride(d);
  for (int64_t k = 0; k < Looked(d); ++k) row(k * stride * d.hidden, k * d.hidden);
}

void LazyWatch::Activation(int64_t step, int32_t micro, const Tensor& x) {
  const TensorDims& d = x.dims;
  if (static_cast<int64_t>(x.data.size()) != d.elements()) return;  // on a device
  const int64_t each = Looked(d) * d.hidden;
  std::vector<float> kept(d.samples * each);
  for (int64_t s = 0; s < d.samples; ++s) {
    const float* from = x.data.data() + s * d.positions * d.hidden;
    float* to = kept.data() + s * each;
    ForRows(d,
            [&](int64_t at, int64_t kept_at) { std::copy_n(from + at, d.hidden, to + kept_at); });
  }
  MutexLock lock(&mutex_);
  if (activations_.size() < limit_) activations_[{step, micro}] = std::move(kept);
}

// e against last - x.
void LazyWatch::Compare(int64_t sample, const TensorDims& d, absl::Span<const float> x,
                        absl::Span<const float> e) {
  const float* last = last_[sample].data();
  ForRows(d, [&](int64_t at, int64_t kept_at) {
    float dot = 0, ee = 0, dd = 0, es = 0, ds = 0;  // of one row: then in double
    for (int64_t i = 0; i < d.hidden; ++i) {
      const float error = e[at + i], difference = last[kept_at + i] - x[kept_at + i];
      dot += error * difference;
      ee += error * error;
      dd += difference * difference;
      es += error;
      ds += difference;
    }
    sums_.dot += dot;
    sums_.error_squares += ee;
    sums_.difference_squares += dd;
    sums_.errors += es;
    sums_.differences += ds;
    sums_.elements += static_cast<double>(d.hidden);
  });
}

void LazyWatch::Before(int64_t step, int32_t micro, bool coded,
                       const compress::TensorView& gradient, const compress::Encoder& encoder) {
  std::vector<float> x;
  {
    MutexLock lock(&mutex_);
    const auto found = activations_.find({step, micro});
    if (found != activations_.end()) {
      x = std::move(found->second);
      activations_.erase(found);
    }
  }
  sums_ = Sums();
  dims_ = gradient.dims;
  if (!coded || gradient.device != compress::Device::kCpu) return;
  const TensorDims& d = dims_;
  const int64_t sample_elements = d.positions * d.hidden, each = Looked(d) * d.hidden;
  const bool known = static_cast<int64_t>(x.size()) == d.samples * each;
  last_.resize(std::max<size_t>(last_.size(), d.samples));
  for (int64_t s = 0; s < d.samples; ++s) {
    const absl::Span<const float> e = encoder.residual(s);
    const float* g = static_cast<const float*>(gradient.data) + s * sample_elements;
    const bool has_error = static_cast<int64_t>(e.size()) == sample_elements;
    ForRows(d, [&](int64_t at, int64_t) {
      float squares = 0;
      for (int64_t i = 0; i < d.hidden; ++i) {
        const float wanted = g[at + i] + (has_error ? e[at + i] : 0.0f);
        squares += wanted * wanted;
      }
      sums_.wanted_squares += squares;
    });
    const absl::Span<const float> mine =
        known ? absl::MakeConstSpan(x).subspan(s * each, each) : absl::Span<const float>();
    if (has_error && known && last_[s].size() == mine.size()) Compare(s, d, mine, e);
    last_[s].assign(mine.begin(), mine.end());
  }
}

void LazyWatch::After(int64_t step, const compress::Encoder& encoder) {
  const TensorDims& d = dims_;
  for (int64_t s = 0; s < d.samples; ++s) {
    const absl::Span<const float> e = encoder.residual(s);
    if (static_cast<int64_t>(e.size()) != d.positions * d.hidden) return;
    ForRows(d, [&](int64_t at, int64_t) {
      float squares = 0;
      for (int64_t i = 0; i < d.hidden; ++i) squares += e[at + i] * e[at + i];
      sums_.left_squares += squares;
    });
  }
  MutexLock lock(&mutex_);
  if (means_.size() >= kMostSteps && means_.count(step) == 0) means_.erase(means_.begin());
  Means& means = means_[step];
  const double lengths = std::sqrt(sums_.error_squares * sums_.difference_squares);
  if (lengths > 0 && std::isfinite(lengths) && std::isfinite(sums_.dot)) {
    ++means.cosines;
    means.cosine += sums_.dot / lengths;
    means.error += sums_.errors / sums_.elements;
    means.difference += sums_.differences / sums_.elements;
  }
  const double relative = std::sqrt(sums_.left_squares / sums_.wanted_squares);
  if (std::isfinite(relative)) {
    ++means.relatives;
    means.relative += relative;
  }
}

std::optional<LazyError> LazyWatch::Take(int64_t step) {
  MutexLock lock(&mutex_);
  const auto found = means_.find(step);
  if (found == means_.end()) return std::nullopt;
  const Means means = found->second;
  means_.erase(found);
  if (means.cosines == 0 || means.relatives == 0) return std::nullopt;
  const auto n = static_cast<double>(means.cosines);
  LazyError error;
  error.set_cosine(means.cosine / n);
  error.set_error_mean(means.error / n);
  error.set_difference_mean(means.difference / n);
  error.set_relative_error(means.relative / static_cast<double>(means.relatives));
  return error;
}

}  // namespace isthmus::worker
