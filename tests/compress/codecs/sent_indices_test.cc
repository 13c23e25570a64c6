#include "compress/codecs/sent_indices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

TEST(SentIndices, AreThoseOfTheEncoderAndTheDecoder) {
  for (const char* text :
       {"topk(0.1)", "topk(0.1, global, values=quant(4, group=32))", "topk(0.9, values=none)",
        "topk(1, global)", "topk(0.001)", "randomk(0.1)", "randomk(0.13, scaled, values=none)",
        "randomk(1, scaled)"}) {
    for (const auto& [positions, hidden] : {std::pair{6, 50}, {5, 1}, {1, 17}, {0, 4}}) {
      Pair pair(text, positions, hidden);
      for (uint64_t frame = 0; frame < 2; ++frame) {  // randomk draws anew
        const size_t samples = 3;
        const std::vector<uint32_t> ids = Ids(samples);
        const std::string payload =
            pair.Encode(Gaussian(samples * static_cast<size_t>(positions * hidden), 1, frame), ids);
        std::vector<float> y;
        ASSERT_TRUE(pair.Decode(payload, pair.encoder->version(), ids, &y).ok());
        const std::vector<uint32_t> sent = SentIndices(pair.spec, pair.options, payload, 3);
        EXPECT_THAT(sent, ElementsAreArray(pair.encoder->indices()))
            << text << " " << positions << "x" << hidden;
        EXPECT_THAT(sent, ElementsAreArray(pair.decoder->indices())) << text;
        EXPECT_EQ(sent.empty(), positions == 0) << text;
      }
      EXPECT_THAT(SentIndices(pair.spec, pair.options, "", 0), IsEmpty());
    }
  }
}

TEST(SentIndices, OfAnotherCodecThereAreNone) {
  for (const char* text : {"quant(4)", "randomk(0.5, values=topk(0.1))", "cocktail(0.5, 0.1, 4)",
                           "delta(topk(0.1))", "ef(topk(0.1))"}) {
    Pair pair(text, 6, 50);
    const std::string payload = pair.Encode(Gaussian(300, 1), {0});
    EXPECT_THAT(pair.encoder->indices(), IsEmpty()) << text;
    EXPECT_THAT(SentIndices(pair.spec, pair.options, payload, 1), IsEmpty()) << text;
  }
}

TEST(SentIndices, BytesThatNoEncoderMakesHaveNone) {
  Pair pair("topk(0.1)", 6, 50);
  std::string payload = pair.Encode(Gaussian(600, 1), {0, 1});
  EXPECT_THAT(SentIndices(pair.spec, pair.options, payload.substr(0, 20), 2), IsEmpty());
  const size_t second = payload.size() / 2;
  payload.replace(second, 10, 10, '\xff');
  EXPECT_THAT(SentIndices(pair.spec, pair.options, payload, 2), IsEmpty());
  Pair random("randomk(0.1)", 6, 50);
  EXPECT_THAT(SentIndices(random.spec, random.options, "abc", 1), IsEmpty());
}

}  // namespace
}  // namespace isthmus::compress
