#include "base/number_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/rng.h"

namespace isthmus {
namespace {

TEST(NumberText, IsShortAndWholeNumbersAreWhole) {
  for (const auto& [value, text] : {std::pair<double, const char*>(0, "0"),
                                    {1e9, "1000000000"},
                                    {1e15, "1000000000000000"},
                                    {-1234567, "-1234567"},
                                    {0.05, "0.05"},
                                    {1e-12, "1e-12"},
                                    {0.1 + 0.2, "0.30000000000000004"},
                                    {1e300, "1e+300"},
                                    {std::numeric_limits<double>::infinity(), "inf"},
                                    {std::numeric_limits<double>::quiet_NaN(), "nan"}})
    EXPECT_EQ(NumberText(value), text);
}

TEST(NumberText, ReadsBack) {
  for (uint64_t i = 0; i < 10000; ++i) {
    const double value = (RandomUniform(1, 0, i) - 0.5) *
                         std::pow(10.0, static_cast<double>(RandomBelow(1, 1, i, 40)) - 20);
    EXPECT_EQ(std::strtod(NumberText(value).c_str(), nullptr), value) << NumberText(value);
  }
}

TEST(NumberText, ShortOnesHideWhatArithmeticAdds) {
  for (const auto& [value, text] : {std::pair<double, const char*>(0.1 * 0.003, "0.0003"),
                                    {0.1 + 0.2, "0.3"},
                                    {0.1000000001, "0.1000000001"},
                                    {-1.0 / 3, "-0.333333333333"},
                                    {1e9, "1000000000"},
                                    {1e-12, "1e-12"},
                                    {1e300, "1e+300"},
                                    {-std::numeric_limits<double>::infinity(), "-inf"},
                                    {std::numeric_limits<double>::quiet_NaN(), "nan"}})
    EXPECT_EQ(ShortNumberText(value), text);
}

TEST(RangeText, OneNumberIsNoRange) {
  EXPECT_EQ(RangeText(2, 5), "from 2 to 5");
  EXPECT_EQ(RangeText(0, 0), "0");
}

TEST(CountText, OneIsNoPlural) {
  EXPECT_EQ(CountText(0, "layer"), "0 layers");
  EXPECT_EQ(CountText(1, "layer"), "1 layer");
  EXPECT_EQ(CountText(-1, "step"), "-1 steps");
  EXPECT_EQ(CountText(12, "phase"), "12 phases");
}

}  // namespace
}  // namespace isthmus
