#include "compress/simd/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "compress/simd/convert.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"
#include "tests/compress/targets.h"

namespace isthmus::compress {
namespace {

// T1.1.
TEST(Quantize, GoldenVector) {
  const std::vector<float> x = {1, -1, .5f, .26f, -.24f, 0};
  const struct {
    int bits;
    std::vector<uint8_t> codes;
    std::vector<float> values;
  } cases[] = {{2, {3, 0, 3, 3, 2, 2}, {.5f, -1, .5f, .5f, 0, 0}},
               {3, {7, 0, 6, 5, 3, 4}, {.75f, -1, .5f, .25f, -.25f, 0}},
               {4, {15, 0, 12, 10, 6, 8}, {.875f, -1, .5f, .25f, -.25f, 0}}};
  const uint16_t scale = ScaleOfBits(MaxBits(x.data(), x.size()));
  EXPECT_EQ(Bf16ToFloat(scale), 1.0f);
  for (const auto& c : cases) {
    const Levels levels(c.bits, false);
    const std::vector<float> inverse(6, levels.Inverse(scale)), step(6, levels.Step(scale));
    std::vector<uint8_t> codes(6);
    std::vector<float> y(6);
    QuantizeRow(levels, x.data(), {inverse.data(), 1}, 6, codes.data());
    EXPECT_EQ(codes, c.codes);
    DequantizeRow(levels, codes.data(), {step.data(), 1}, 6, y.data());
    EXPECT_EQ(y, c.values);
  }
}

TEST(Quantize, SymmetricLevelsHoldBothEnds) {
  for (int bits = 1; bits <= 8; ++bits) {
    const Levels levels(bits, true);
    const uint16_t scale = FloatToBf16(1.0f);
    const std::vector<float> x = {1, -1, 0.41f, -0.41f};
    const std::vector<float> inverse(4, levels.Inverse(scale)), step(4, levels.Step(scale));
    std::vector<uint8_t> codes(4);
    std::vector<float> y(4);
    QuantizeRow(levels, x.data(), {inverse.data(), 1}, 4, codes.data());
    EXPECT_EQ(codes[0], (1 << bits) - 1);
    EXPECT_EQ(codes[1], 0);
    DequantizeRow(levels, codes.data(), {step.data(), 1}, 4, y.data());
    EXPECT_NEAR(y[0], 1.0f, 1e-6) << bits;
    EXPECT_EQ(y[1], -y[0]) << bits;
    EXPECT_EQ(y[3], -y[2]) << bits;
    EXPECT_LE(std::fabs(y[2] - 0.41f), 1.0f / static_cast<float>((1 << bits) - 1) + 1e-6f) << bits;
  }
}

TEST(Quantize, ScalesRoundUpAndHaveAnEnd) {
  EXPECT_EQ(ScaleOfBits(0), 0);
  EXPECT_EQ(ScaleOfBits(FloatBits(1e-31f)), 0);  // under 2^-100
  EXPECT_EQ(ScaleOfBits(FloatBits(0x1p-100f)), kScaleMin);
  EXPECT_EQ(ScaleOfBits(FloatBits(1.0f) + 1), FloatToBf16(1.0078125f));  // up, never down
  EXPECT_EQ(ScaleOfBits(FloatBits(3e38f)), kScaleMax);
  EXPECT_EQ(ScaleOfBits(FloatBits(std::numeric_limits<float>::infinity())), kScaleNan);
  EXPECT_EQ(ScaleOfBits(0x7fc00001), kScaleNan);
  // What fp16 scales would lose: a gradient of 1e-9, an activation of 1e6.
  for (float x : {1e-9f, 1e6f}) {
    const float s = Bf16ToFloat(ScaleOfBits(FloatBits(x)));
    EXPECT_GE(s, x);
    EXPECT_LE(s, x * 1.008f);
  }
  EXPECT_EQ(ScaleOfRms(FloatBits(2.0f), 16.0f, 4), FloatToBf16(4.0f));
  EXPECT_EQ(ScaleOfRms(FloatBits(1e30f), std::numeric_limits<float>::infinity(), 4), kScaleMax);
  EXPECT_EQ(ScaleOfRms(0, 0, 0), 0);
}

// T1.3: relative error on Gaussian data, within 3 %.
TEST(Quantize, RelativeErrorsOfTheTable) {
  struct Row {
    int bits;
    double channel, token, group;
  };
  const Row rows[] = {{1, .936, .909, .871},    {2, .506, .458, .412},
                      {3, .251, .226, .201},    {4, .125, .112, .0996},
                      {6, .0313, .0281, .0248}, {8, .00783, .00701, .00618}};
  const int64_t positions = 1024, hidden = 256;
  const std::vector<float> x = Gaussian(positions * hidden, 1);
  for (const Row& r : rows) {
    auto error = [&](const char* scale) {
      Pair pair("quant(" + std::to_string(r.bits) + scale + ")", positions, hidden);
      return RelativeError(x, pair.RoundTrip(x, {0}));
    };
    EXPECT_NEAR(error("") / r.channel, 1.0, 0.03) << r.bits;
    EXPECT_NEAR(error(", token") / r.token, 1.0, 0.03) << r.bits;
    EXPECT_NEAR(error(", group=64") / r.group, 1.0, 0.03) << r.bits;
    if (r.bits >= 2) {
      EXPECT_LT(error(""), std::sqrt(0.5));
    }
    if (r.bits == 1) {
      EXPECT_GT(error(""), std::sqrt(0.5));
    }
  }
}

TEST(Quantize, StochasticRoundingIsUnbiasedAndSeeded) {
  const Levels levels(3, false);
  const uint16_t scale = FloatToBf16(1.0f);
  const size_t n = 40000;
  const std::vector<float> x(n, 0.3f), inverse(n, levels.Inverse(scale)),
      step(n, levels.Step(scale));
  std::vector<uint8_t> a(n), b(n), c(n);
  QuantizeRowStochastic(levels, x.data(), {inverse.data(), 1}, n, 1, 2, 0, a.data());
  QuantizeRowStochastic(levels, x.data(), {inverse.data(), 1}, n, 1, 2, 0, b.data());
  QuantizeRowStochastic(levels, x.data(), {inverse.data(), 1}, n, 1, 3, 0, c.data());
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  std::vector<float> y(n);
  DequantizeRow(levels, a.data(), {step.data(), 1}, n, y.data());
  double mean = 0;
  for (float v : y) mean += v / n;
  EXPECT_NEAR(mean, 0.3, 4 * 0.125 / std::sqrt(n));  // 4 standard deviations at most
}

// One scale for a group is the same as that scale for each of its elements, and a group's maximum
// that of its elements.
TEST(Quantize, GroupsEqualTheirElements) {
  ForEachTarget([] {
    for (const Levels& levels : {Levels(4, false), Levels(3, true), Levels(8, false)}) {
      for (size_t n : {0, 1, 15, 16, 33, 64, 100, 257, 1601}) {
        for (size_t group : {16, 32, 37, 64, 100, 128, 2000}) {
          const std::vector<float> x = Gaussian(n, n);
          std::vector<float> inverse, step, each_inverse(n), each_step(n);
          std::vector<uint32_t> max_bits((n + group - 1) / group, 1);
          MaxBitsOfGroups(x.data(), n, group, max_bits.data());
          for (size_t g = 0; g < max_bits.size(); ++g) {
            const size_t from = g * group, to = std::min(n, from + group);
            uint32_t largest = 0;
            for (size_t i = from; i < to; ++i)
              largest = std::max(largest, FloatBits(std::fabs(x[i])));
            ASSERT_EQ(max_bits[g], largest) << n << " in " << group;
            ASSERT_EQ(MaxBits(x.data() + from, to - from), largest);
            inverse.push_back(levels.Inverse(ScaleOfBits(largest)));
            step.push_back(levels.Step(ScaleOfBits(largest)));
            for (size_t i = from; i < to; ++i) {
              each_inverse[i] = inverse[g];
              each_step[i] = step[g];
            }
          }
          std::vector<uint8_t> codes(n), each_codes(n);
          QuantizeRow(levels, x.data(), {inverse.data(), group}, n, codes.data());
          QuantizeRow(levels, x.data(), {each_inverse.data(), 1}, n, each_codes.data());
          ASSERT_EQ(codes, each_codes) << n << " in " << group;
          for (size_t i = 0; i < n; ++i) {
            uint8_t alone;  // the scalar tail
            QuantizeRow(levels, &x[i], {&each_inverse[i], 1}, 1, &alone);
            ASSERT_EQ(codes[i], alone) << i << " of " << n;
          }
          std::vector<float> y(n), each_y(n);
          DequantizeRow(levels, codes.data(), {step.data(), group}, n, y.data());
          DequantizeRow(levels, codes.data(), {each_step.data(), 1}, n, each_y.data());
          ASSERT_EQ(y, each_y) << n << " in " << group;
        }
      }
    }
  });
}

TEST(Quantize, SumOfSquaresHasADefinedOrder) {
  const std::vector<float> x = Gaussian(1000, 5);
  double exact = 0;
  for (float v : x) exact += double{v} * v;
  EXPECT_NEAR(SumOfSquares(x.data(), x.size()), exact, 1e-3);
  EXPECT_EQ(SumOfSquares(x.data(), 0), 0);
}

}  // namespace
}  // namespace isthmus::compress
