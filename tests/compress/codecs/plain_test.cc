#include "compress/codecs/plain.h"

#include <limits>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

TEST(Plain, NoneKeepsEveryBitPattern) {
  Pair pair("none", 3, 5);
  std::vector<float> x(15);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = BitsToFloat(static_cast<uint32_t>(RandomBits(2, 0, i)));
  x[0] = BitsToFloat(0x7f800001);  // a signalling NaN
  const std::vector<float> y = pair.RoundTrip(x, {0});
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(FloatBits(x[i]), FloatBits(y[i]));
}

TEST(Plain, SixteenBitFormatsRound) {
  const std::vector<float> x = {1.0f,   1.0001f, -70000.0f,
                                1e-30f, 0.1f,    std::numeric_limits<float>::infinity()};
  Pair bf16("bf16", 2, 3), fp16("fp16", 2, 3);
  const std::vector<float> b = bf16.RoundTrip(x, {0}), h = fp16.RoundTrip(x, {0});
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(b[i], Bf16ToFloat(FloatToBf16(x[i])));
    EXPECT_EQ(h[i], HalfToFloat(FloatToHalf(x[i])));
  }
  EXPECT_EQ(bf16.payload_bytes, 12);
}

}  // namespace
}  // namespace isthmus::compress
