#include "compress/codecs/per_sample.h"

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

TEST(PerSample, FramesOfAnyNumberOfSamplesAndNoMemoryOfLostOnes) {
  Pair pair("quant(3)", 2, 7);
  for (size_t samples : {0u, 1u, 5u, 2u}) {
    const std::vector<float> x = Gaussian(samples * 14, samples);
    const std::string lost = pair.Encode(x, Ids(samples));
    EXPECT_EQ(pair.RoundTrip(x, Ids(samples)).size(), x.size());
    EXPECT_EQ(pair.payload_bytes, static_cast<int64_t>(lost.size()));
  }
  EXPECT_EQ(pair.encoder->version(), 8u);
  EXPECT_EQ(pair.encoder->stats().raw_bytes, 2 * 8 * 14 * 4);
}

TEST(PerSample, RefusesBytesTooFewOrTooMany) {
  Pair pair("bf16", 2, 3);
  const std::string good = pair.Encode(Gaussian(12, 1), {0, 1});
  std::vector<float> y;
  EXPECT_TRUE(pair.Decode(good, 1, {0, 1}, &y).ok());
  EXPECT_EQ(pair.Decode(good + "x", 2, {0, 1}, &y).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pair.Decode(good.substr(1), 2, {0, 1}, &y).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus::compress
