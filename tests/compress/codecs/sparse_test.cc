#include "compress/codecs/sparse.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

int64_t NonZero(const std::vector<float>& y, size_t from, size_t to) {
  return std::count_if(y.begin() + static_cast<std::ptrdiff_t>(from),
                       y.begin() + static_cast<std::ptrdiff_t>(to), [](float v) { return v != 0; });
}

// T3.3: what is kept is the largest and unchanged, all else is zero; the wire holds values and
// indices.
TEST(TopK, KeepsTheLargestOfEachToken) {
  Pair pair("topk(0.1, values=none)", 6, 50);
  const std::vector<float> x = Gaussian(300, 1);
  const std::vector<float> y = pair.RoundTrip(x, {0});
  for (size_t p = 0; p < 6; ++p) {
    EXPECT_EQ(NonZero(y, 50 * p, 50 * p + 50), 5);
    float least = 1e9f, largest_dropped = 0;
    for (size_t i = 50 * p; i < 50 * p + 50; ++i) {
      if (y[i] != 0) {
        EXPECT_EQ(y[i], x[i]);
        least = std::min(least, std::fabs(x[i]));
      } else {
        largest_dropped = std::max(largest_dropped, std::fabs(x[i]));
      }
    }
    EXPECT_GE(least, largest_dropped);
  }
  EXPECT_EQ(pair.payload_bytes, IndexSetBytes(300, 30) + 4 * 30);
}

TEST(TopK, GlobalLetsOutlierTokensEatTheBudget) {
  std::vector<float> x = Gaussian(300, 1);
  for (size_t i = 0; i < 50; ++i) x[i] *= 100;
  Pair global("topk(0.1, global)", 6, 50), token("topk(0.1)", 6, 50);
  const std::vector<float> g = global.RoundTrip(x, {0}), t = token.RoundTrip(x, {0});
  EXPECT_GT(NonZero(g, 0, 50), 25);
  EXPECT_EQ(NonZero(t, 0, 50), 5);
}

TEST(TopK, AllElementsAreTheDenseTensor) {
  for (const char* text : {"topk(1, values=none)", "topk(1, global, values=none)",
                           "randomk(1, values=none)", "randomk(1, scaled, values=none)"}) {
    Pair pair(text, 7, 13);
    const std::vector<float> x = Gaussian(182, 2);
    EXPECT_EQ(pair.RoundTrip(x, {0, 1}), x) << text;
  }
}

TEST(TopK, TiesGoToTheLowerPlaceAndZerosAreNoTrouble) {
  std::vector<uint32_t> scratch, indices;
  const float x[] = {1, -1, 0, 1, 2, -1};
  SelectLargest(x, 6, 3, 10, &scratch, &indices);
  EXPECT_EQ(indices, (std::vector<uint32_t>{10, 11, 14}));
  Pair pair("topk(0.2)", 3, 10);
  const std::vector<float> zeros(30, 0.0f);
  EXPECT_EQ(pair.RoundTrip(zeros, {0}), zeros);
}

TEST(TopK, NonFiniteCountsAsLargest) {
  Pair pair("topk(0.1)", 1, 20);
  std::vector<float> x = Gaussian(20, 3);
  x[7] = std::numeric_limits<float>::quiet_NaN();
  x[9] = -std::numeric_limits<float>::infinity();
  const std::vector<float> y = pair.RoundTrip(x, {0});
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_EQ(y[9], x[9]);
}

TEST(RandomK, IndicesComeFromTheSeedAndAreUniform) {
  const size_t n = 200;
  const std::vector<float> x(n, 1.0f);
  Pair pair("randomk(0.1, values=none)", 1, static_cast<int64_t>(n)),
      same("randomk(0.1, values=none)", 1, static_cast<int64_t>(n));
  std::vector<int> hits(n, 0);
  const int frames = 4000;
  for (int f = 0; f < frames; ++f) {
    const std::vector<float> y = pair.RoundTrip(x, {0});
    if (f == 0) {
      EXPECT_EQ(y, same.RoundTrip(x, {0}));
    }
    EXPECT_EQ(NonZero(y, 0, n), 20);
    for (size_t i = 0; i < n; ++i) hits[i] += y[i] != 0;
  }
  for (size_t i = 0; i < n; ++i)
    EXPECT_NEAR(hits[i], frames / 10, 6 * std::sqrt(frames * 0.09)) << i;
}

TEST(RandomK, ScaledIsUnbiased) {
  const std::vector<float> x = Gaussian(90, 4);
  Pair scaled("randomk(0.13, scaled, values=none)", 9, 10),
      plain("randomk(0.13, values=none)", 9, 10);
  std::vector<double> mean_scaled(90, 0), mean_plain(90, 0);
  const int frames = 6000;
  for (int f = 0; f < frames; ++f) {
    const std::vector<float> s = scaled.RoundTrip(x, {0}), p = plain.RoundTrip(x, {0});
    for (size_t i = 0; i < 90; ++i) {
      mean_scaled[i] += s[i] / frames;
      mean_plain[i] += p[i] / frames;
    }
  }
  double error_scaled = 0, error_plain = 0, norm = 0;
  for (size_t i = 0; i < 90; ++i) {
    error_scaled += (mean_scaled[i] - x[i]) * (mean_scaled[i] - x[i]);
    error_plain += (mean_plain[i] - x[i]) * (mean_plain[i] - x[i]);
    norm += x[i] * x[i];
  }
  EXPECT_LT(error_scaled / norm, 0.01);
  EXPECT_GT(error_plain / norm, 0.6);  // shrunk by the ratio
}

TEST(Cocktail, KeepsAFewQuantisedElementsOfTheSubset) {
  Pair pair("cocktail(0.1, 0.2, 4)", 20, 100);
  const std::vector<float> x = Gaussian(2000, 5);
  const std::vector<float> y = pair.RoundTrip(x, {0});
  EXPECT_LE(NonZero(y, 0, 2000), 40);
  EXPECT_GE(NonZero(y, 0, 2000), 30);
  for (size_t i = 0; i < 2000; ++i) {
    if (y[i] != 0) {
      EXPECT_NEAR(y[i], x[i], 0.5) << i;
    }
  }
  EXPECT_EQ(pair.payload_bytes, 4 + IndexSetBytes(200, 40) + 2 * 1 + 20);
}

}  // namespace
}  // namespace isthmus::compress
