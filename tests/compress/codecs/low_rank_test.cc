#include "compress/codecs/low_rank.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

std::vector<float> OfRank(int64_t rows, int64_t columns, int64_t rank, uint64_t seed) {
  const std::vector<float> a = Gaussian(static_cast<size_t>(rows * rank), seed, 1),
                           b = Gaussian(static_cast<size_t>(rank * columns), seed, 2);
  std::vector<float> x(static_cast<size_t>(rows * columns), 0.0f);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t j = 0; j < columns; ++j)
        x[static_cast<size_t>(i * columns + j)] +=
            a[static_cast<size_t>(i * rank + k)] * b[static_cast<size_t>(k * columns + j)];
    }
  }
  return x;
}

// T2.1.
TEST(LowRank, AMatrixOfThatRankIsExactInOneCall) {
  for (auto [rank, true_rank] :
       {std::pair<int, int64_t>{1, 1}, {4, 4}, {16, 3}, {16, 16}, {128, 20}}) {
    Pair pair("lowrank(" + std::to_string(rank) + ")", 40, 60);
    const std::vector<float> x = OfRank(40, 60, true_rank, static_cast<uint64_t>(rank));
    EXPECT_LT(RelativeError(x, pair.RoundTrip(x, {0})), 1e-4) << rank;
    EXPECT_EQ(pair.payload_bytes, 4 * std::min(rank, 40) * 100);
  }
}

TEST(LowRank, WarmStartApproachesTheBestApproximation) {
  const int64_t n = 48;
  std::vector<float> x = OfRank(n, n, 4, 1);
  const std::vector<float> noise = Gaussian(static_cast<size_t>(n * n), 9);
  for (size_t i = 0; i < x.size(); ++i) x[i] += 0.3f * noise[i];
  Pair pair("lowrank(4)", n, n);
  const double first = RelativeError(x, pair.RoundTrip(x, {0}));
  double last = first;
  for (int i = 0; i < 6; ++i) last = RelativeError(x, pair.RoundTrip(x, {0}));
  EXPECT_LT(last, first);
  EXPECT_LT(last, 0.17);  // noise outside of the 4 directions: about 0.3 / sqrt(4 + 0.09)
}

TEST(LowRank, ZerosGiveZerosAndTheNextSampleIsWhole) {
  Pair pair("lowrank(3)", 10, 8);
  const std::vector<float> zeros(80, 0.0f), x = OfRank(10, 8, 3, 2);
  EXPECT_EQ(pair.RoundTrip(zeros, {0}), zeros);
  EXPECT_EQ(pair.RoundTrip(zeros, {0}), zeros);
  EXPECT_LT(RelativeError(x, pair.RoundTrip(x, {0})), 1e-4);
}

TEST(LowRank, NonFiniteIsSeenAndForgotten) {
  Pair pair("lowrank(3)", 10, 8);
  std::vector<float> x = OfRank(10, 8, 3, 2), bad = x;
  bad[5] = std::numeric_limits<float>::infinity();
  for (float v : pair.RoundTrip(bad, {0})) EXPECT_TRUE(std::isnan(v));
  EXPECT_LT(RelativeError(x, pair.RoundTrip(x, {0})), 1e-4);
}

TEST(LowRank, TinyAndHugeNumbers) {
  for (float scale : {1e-30f, 1e-12f, 1e12f}) {
    Pair pair("lowrank(3)", 10, 8);
    std::vector<float> x = OfRank(10, 8, 3, 2);
    for (float& v : x) v *= scale;
    for (float v : pair.RoundTrip(x, {0})) EXPECT_TRUE(std::isfinite(v)) << scale;
  }
}

TEST(LowRank, OrthonormalizeLeavesZerosForDependentColumns) {
  std::vector<float> a = {1, 2, 1, 0,  //
                          1, 2, 0, 0,  //
                          0, 0, 1, 0};
  Orthonormalize(&a, 3, 4);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a[4 * i + 1], 0.0f);
    EXPECT_EQ(a[4 * i + 3], 0.0f);
  }
  double dot = 0, norm = 0;
  for (size_t i = 0; i < 3; ++i) {
    dot += a[4 * i] * a[4 * i + 2];
    norm += a[4 * i + 2] * a[4 * i + 2];
  }
  EXPECT_NEAR(dot, 0, 1e-7);
  EXPECT_NEAR(norm, 1, 1e-6);
}

}  // namespace
}  // namespace isthmus::compress
