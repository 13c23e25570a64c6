#include "compress/simd/convert.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"

namespace isthmus::compress {
namespace {

TEST(Convert, EveryHalfGoesToFloatAndBack) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  std::vector<uint16_t> back(all.size());
  HalfToFloats(all.data(), all.size(), wide.data());
  FloatsToHalf(wide.data(), wide.size(), back.data());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(FloatBits(wide[i]), FloatBits(HalfToFloat(all[i]))) << i;
    if (std::isnan(wide[i])) {
      EXPECT_EQ(back[i], all[i] | 0x200) << i;
    } else {
      EXPECT_EQ(back[i], all[i]);
      const int exponent = (all[i] >> 10) & 0x1f;
      const double value = exponent == 0 ? (all[i] & 0x3ff) * 0x1p-24
                                         : std::ldexp(1024 + (all[i] & 0x3ff), exponent - 25);
      if (exponent < 31) {
        EXPECT_EQ(std::fabs(wide[i]), value) << i;
      }
    }
  }
}

TEST(Convert, EveryBf16GoesToFloatAndBack) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  std::vector<uint16_t> back(all.size());
  Bf16ToFloats(all.data(), all.size(), wide.data());
  FloatsToBf16(wide.data(), wide.size(), back.data());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(FloatBits(wide[i]), static_cast<uint32_t>(i) << 16);
    EXPECT_EQ(back[i], std::isnan(wide[i]) ? all[i] | 0x40 : all[i]);
  }
}

// The fast versions against the scalar ones, at every length and on bits of all sorts.
TEST(Convert, ArraysEqualScalars) {
  for (size_t n : {0u, 1u, 2u, 3u, 5u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 33u, 20000u}) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t r = RandomBits(1, n, i);
      // Half of them around the range of fp16, where rounding has its corners.
      x[i] = i % 2 ? BitsToFloat(static_cast<uint32_t>(r))
                   : BitsToFloat(
                         static_cast<uint32_t>((r & 0x807fffffu) | ((100 + (r >> 32) % 46) << 23)));
    }
    std::vector<uint16_t> half(n), bf16(n);
    FloatsToHalf(x.data(), n, half.data());
    FloatsToBf16(x.data(), n, bf16.data());
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(half[i], FloatToHalf(x[i])) << std::hex << FloatBits(x[i]);
      ASSERT_EQ(bf16[i], FloatToBf16(x[i])) << std::hex << FloatBits(x[i]);
    }
  }
}

TEST(Convert, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(BitsToFloat(0x3f808000)), 0x3f80);  // half-way, even below
  EXPECT_EQ(FloatToBf16(BitsToFloat(0x3f818000)), 0x3f82);  // half-way, even above
  EXPECT_EQ(FloatToBf16(BitsToFloat(0x3f808001)), 0x3f81);
  EXPECT_EQ(FloatToBf16(3.4e38f), 0x7f80);  // over the largest: inf
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0);  // half of the smallest: to even
  EXPECT_EQ(FloatToHalf(0x1.8p-25f), 1);
  EXPECT_EQ(FloatToHalf(-0x1p-24f), 0x8001);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(BitsToFloat(0x7f800001)))));
}

}  // namespace
}  // namespace isthmus::compress
