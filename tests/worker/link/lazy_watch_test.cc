#include "worker/link/lazy_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "proto/codec/codec_text.h"

namespace isthmus::worker {
namespace {

using Values = std::vector<float>;

Values Random(const TensorDims& d, uint64_t seed) {
  Values v(d.elements());
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(RandomUniform(seed, 1, i) + RandomUniform(seed, 2, i) - 1);
  return v;
}

// The upper end of a boundary: activations come, gradients go by a lep.
class Boundary {
 public:
  explicit Boundary(const TensorDims& dims, const char* codec = "lep(lowrank(2))", size_t limit = 8)
      : dims_(dims), watch_(limit) {
    compress::CodecOptions options;
    options.positions = dims.positions;
    options.hidden = dims.hidden;
    options.max_samples = dims.samples;
    encoder_ = compress::MakeEncoder(ParseCodec(codec).value(), options).value();
  }

  void Activation(int64_t step, int micro, Values x) {
    Tensor tensor;
    tensor.dims = dims_;
    tensor.data = std::move(x);
    watch_.Activation(step, micro, tensor);
  }
  void Gradient(int64_t step, int micro, const Values& g, bool coded = true) {
    const compress::TensorView view{g.data(), compress::DType::kF32, compress::Device::kCpu, dims_};
    watch_.Before(step, micro, coded, view, *encoder_);
    if (!coded) return;
    std::string payload;
    ASSERT_TRUE(encoder_->Encode(view, {}, &payload).ok());
    watch_.After(step, *encoder_);
  }
  // Of all samples, one after the other.
  Values Error() const {
    Values all;
    for (int64_t s = 0; s < dims_.samples; ++s) {
      const absl::Span<const float> e = encoder_->residual(s);
      all.insert(all.end(), e.begin(), e.end());
    }
    return all;
  }
  std::optional<LazyError> Take(int64_t step) { return watch_.Take(step); }

 private:
  const TensorDims dims_;
  std::unique_ptr<compress::Encoder> encoder_;
  LazyWatch watch_;
};

Values Plus(const Values& a, double k, const Values& b) {
  Values sum(a);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(k * b[i]);
  return sum;
}

// Algorithms, T2.3: an error along the difference of two activations is seen, and one across it.
TEST(LazyWatch, TheCosineOfAnErrorAlongTheDifferenceIsOne) {
  const TensorDims d{2, LazyWatch::kMostPositions, 48};  // all are looked at
  for (const double sign : {1.0, -1.0}) {
    Boundary b(d);
    const Values x = Random(d, 1);
    b.Activation(0, 0, x);
    b.Gradient(0, 0, Random(d, 2));
    const Values e = b.Error();
    b.Activation(0, 1, Plus(x, -sign * 3, e));  // x_0 - x_1 is 3 e_0, or -3 e_0
    b.Gradient(0, 1, Random(d, 3));
    const LazyError error = b.Take(0).value();
    EXPECT_NEAR(error.cosine(), sign, 1e-3);
    double mean = 0;
    for (float v : e) mean += v / static_cast<double>(e.size());
    EXPECT_NEAR(error.error_mean(), mean, 1e-6);
    EXPECT_NEAR(error.difference_mean(), 3 * sign * mean, 1e-5);
    EXPECT_GT(error.relative_error(), 0.3);
    EXPECT_LT(error.relative_error(), 1);
    EXPECT_FALSE(b.Take(0).has_value()) << "taken";
  }
}

TEST(LazyWatch, TheCosineOfIndependentActivationsIsNearZero) {
  const TensorDims d{4, 32, 64};
  Boundary b(d);
  for (int micro = 0; micro < 8; ++micro) {
    b.Activation(0, micro, Random(d, 100 + micro));
    b.Gradient(0, micro, Random(d, 200 + micro));
  }
  // The mean of 7 over 2048 elements each: a standard deviation of 0.008.
  EXPECT_LT(std::abs(b.Take(0).value().cosine()), 0.04);
}

// Of many positions some are looked at: what holds for all holds for them.
TEST(LazyWatch, LongSamplesAreLookedAtInPart) {
  const TensorDims d{1, 10 * LazyWatch::kMostPositions + 7, 8};
  Boundary b(d, "lep(topk(0.25))");
  const Values x = Random(d, 1);
  b.Activation(5, 0, x);
  b.Gradient(5, 0, Random(d, 2));
  b.Activation(5, 1, Plus(x, 1, b.Error()));
  b.Gradient(5, 1, Random(d, 3));
  EXPECT_NEAR(b.Take(5).value().cosine(), -1, 1e-3);
}

// The last error of a step meets the first coded gradient of the next; what goes past the codec
// counts for nothing.
TEST(LazyWatch, AnErrorWaitsForTheNextCodedGradient) {
  const TensorDims d{1, 24, 16};
  Boundary b(d);
  const Values x = Random(d, 1);
  b.Activation(0, 0, Random(d, 7));
  b.Gradient(0, 0, Random(d, 8), false);
  b.Activation(0, 1, x);
  b.Gradient(0, 1, Random(d, 2));
  EXPECT_FALSE(b.Take(0).has_value()) << "no error has met anything";
  const Values e = b.Error();
  b.Activation(1, 0, Random(d, 9));
  b.Gradient(1, 0, Random(d, 10), false);
  b.Activation(1, 1, Plus(x, -1, e));
  b.Gradient(1, 1, Random(d, 3));
  EXPECT_NEAR(b.Take(1).value().cosine(), 1, 1e-3);
}

TEST(LazyWatch, WithoutActivationsItLearnsNothingAndHarmsNothing) {
  const TensorDims d{1, 24, 16};
  Boundary b(d, "lep(lowrank(2))", 0);
  for (int micro = 0; micro < 3; ++micro) {
    b.Activation(0, micro, Random(d, micro));
    b.Gradient(0, micro, Random(d, 10 + micro));
  }
  EXPECT_FALSE(b.Take(0).has_value());
  EXPECT_EQ(b.Error().size(), static_cast<size_t>(d.elements()));
}

}  // namespace
}  // namespace isthmus::worker
