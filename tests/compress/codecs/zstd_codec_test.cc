#include "compress/codecs/zstd_codec.h"

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

TEST(Zstd, PaysOnZerosAndStaysOutOfTheWayOnNoise) {
  Pair pair("none | zstd", 16, 64);
  const std::vector<float> zeros(1024, 0.0f), noise = Gaussian(1024, 1);
  EXPECT_EQ(pair.RoundTrip(zeros, {0}), zeros);
  EXPECT_LT(pair.payload_bytes, 100);
  Pair packed("quant(4) | zstd", 16, 64);
  for (int i = 0; i < 40; ++i) {
    packed.RoundTrip(noise, {0});
    EXPECT_LE(packed.payload_bytes, MaxEncodedBytes(packed.spec, packed.Dims(1)));
    EXPECT_LE(packed.payload_bytes, EncodedBytes(packed.spec, packed.Dims(1), true) + 5);
  }
  EXPECT_EQ(packed.encoder->stats().payload_bytes, packed.decoder->stats().payload_bytes);
}

TEST(Zstd, TriesAgainAfterNoise) {
  Pair pair("none | zstd", 16, 64);
  std::vector<float> noise(1024);
  for (size_t i = 0; i < noise.size(); ++i)
    noise[i] = BitsToFloat(static_cast<uint32_t>(RandomBits(1, 2, i)));
  for (int i = 0; i < 10; ++i) {
    pair.Encode(noise, {0});
  }
  size_t smallest = 1 << 20;
  for (int i = 0; i < 20; ++i)
    smallest = std::min(smallest, pair.Encode(std::vector<float>(1024, 1.0f), {0}).size());
  EXPECT_LT(smallest, 100u);
}

TEST(Zstd, EmptyFrames) {
  Pair pair("bf16 | zstd", 0, 5);
  EXPECT_TRUE(pair.RoundTrip({}, {1, 2}).empty());
  EXPECT_EQ(pair.payload_bytes, 5);
}

TEST(Zstd, RefusesLyingHeaders) {
  Pair pair("none | zstd", 4, 4);
  const std::string good = pair.Encode(std::vector<float>(16, 1.0f), {0});
  ASSERT_EQ(good[0], 1);
  std::vector<float> y;
  std::string bad = good;
  bad[0] = 2;
  EXPECT_FALSE(pair.Decode(bad, 1, {0}, &y).ok());
  bad = good;
  bad[4] = 0x7f;  // a raw size of 2 GiB is refused before any memory is taken
  EXPECT_FALSE(pair.Decode(bad, 1, {0}, &y).ok());
  bad = good;
  bad[1] = 63;
  EXPECT_FALSE(pair.Decode(bad, 1, {0}, &y).ok());
  bad = good;
  bad[0] = 0;
  EXPECT_FALSE(pair.Decode(bad, 1, {0}, &y).ok());
  EXPECT_FALSE(pair.Decode("", 1, {0}, &y).ok());
  EXPECT_TRUE(pair.Decode(good, 1, {0}, &y).ok());
}

}  // namespace
}  // namespace isthmus::compress
