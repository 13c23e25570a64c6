#include "compress/codecs/predict.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

constexpr int64_t kPositions = 12, kHidden = 20;

// Activations that depend on token and position, and a little on neither.
struct World {
  explicit World(uint32_t vocabulary)
      : vocabulary(vocabulary),
        token(Gaussian(vocabulary * kHidden, 1)),
        position(Gaussian(kPositions * kHidden, 2)) {}
  void Draw(size_t samples, uint64_t step, float noise, uint32_t offset = 0) {
    tokens.clear();
    x.clear();
    const std::vector<float> n = Gaussian(samples * kPositions * kHidden, 3, step);
    for (size_t s = 0; s < samples; ++s) {
      for (size_t p = 0; p < kPositions; ++p) {
        const double u = RandomUniform(4, step, s * kPositions + p);
        const uint32_t t = static_cast<uint32_t>(u * u * vocabulary);  // some are more frequent
        tokens.push_back(t + offset);
        for (size_t h = 0; h < kHidden; ++h)
          x.push_back(token[t * kHidden + h] + 0.5f * position[p * kHidden + h] +
                      noise * n[x.size()]);
      }
    }
  }
  uint32_t vocabulary;
  std::vector<float> token, position, x;
  std::vector<uint32_t> tokens;
};

absl::Status Step(Pair* pair, const World& world, const std::vector<uint32_t>& ids,
                  std::vector<float>* y) {
  FrameContext sender, receiver;
  sender.sample_ids = receiver.sample_ids = ids;
  sender.token_ids = world.tokens;
  std::string payload;
  y->assign(world.x.size(), -1.0f);
  absl::Status status =
      pair->encoder->Encode(View(world.x, pair->Dims(ids.size())), sender, &payload);
  if (!status.ok()) return status;
  pair->payload_bytes = static_cast<int64_t>(payload.size());
  return pair->decoder->Decode(payload, pair->encoder->version(), receiver,
                               View(y, pair->Dims(ids.size())));
}

TEST(Predict, LearnsMeansOfTokensAndPositions) {
  World world(30);
  Pair direct("quant(2, token)", kPositions, kHidden),
      predict("predict(quant(2, token))", kPositions, kHidden);
  double direct_error = 0, predict_error = 0;
  for (uint64_t step = 0; step < 300; ++step) {
    world.Draw(4, step, 0.1f);
    std::vector<float> y;
    ASSERT_TRUE(Step(&predict, world, Ids(4), &y).ok());
    ASSERT_EQ(std::vector<uint32_t>(predict.decoder->token_ids().begin(),
                                    predict.decoder->token_ids().end()),
              world.tokens);
    ASSERT_EQ(predict.encoder->StateHash().value(), predict.decoder->StateHash().value()) << step;
    if (step >= 250) {
      predict_error += RelativeError(world.x, y) / 50;
      direct_error += RelativeError(world.x, direct.RoundTrip(world.x, Ids(4))) / 50;
    }
  }
  EXPECT_EQ(predict.payload_bytes, EncodedBytes(predict.spec, predict.Dims(4), true));
  EXPECT_LT(predict_error, 0.2 * direct_error) << predict_error << " against " << direct_error;
}

TEST(Predict, EveryInnerCodecKeepsBothEndsIdentical) {
  for (const char* text :
       {"predict(quant(3))", "predict(quant(4, stochastic), rate=0.2)", "predict(topk(0.2))",
        "predict(randomk(0.3))", "predict(bf16)", "predict(lowrank(2))", "predict(sign) | zstd",
        "predict(quant(3), context=3)", "predict(quant(3), rate=0.1, context=2, next)",
        "delta(quant(3), cold=predict(quant(4)))"}) {
    World world(100);
    Pair pair(text, kPositions, kHidden);
    for (uint64_t step = 0; step < 40; ++step) {
      world.Draw(2, step, 0.3f, step % 10 == 9 ? 70000 : 0);  // ids of four bytes now and then
      std::vector<float> y;
      ASSERT_TRUE(Step(&pair, world, Ids(2, static_cast<uint32_t>(step % 15)), &y).ok()) << text;
      ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value())
          << text << " " << step;
      ASSERT_LE(pair.payload_bytes, MaxEncodedBytes(pair.spec, pair.Dims(2))) << text;
    }
  }
}

TEST(Predict, ASampleSeenBeforeTakesItsOwnBuffer) {
  World world(50);
  Pair pair("delta(quant(3), cold=predict(quant(4)))", kPositions, kHidden);
  std::vector<float> y;
  world.Draw(2, 0, 0.3f);
  for (int visit = 0; visit < 5; ++visit) ASSERT_TRUE(Step(&pair, world, {1, 2}, &y).ok());
  EXPECT_EQ(pair.encoder->stats().delta_samples, 8);
  EXPECT_LT(RelativeError(world.x, y), 0.005);        // as precise as a bf16 buffer
  EXPECT_EQ(pair.decoder->token_ids()[0], kNoToken);  // a warm frame brings none
  World more(50);
  more.Draw(2, 1, 0.3f);
  ASSERT_TRUE(Step(&pair, more, {1, 3}, &y).ok());
  EXPECT_EQ(pair.decoder->token_ids()[0], kNoToken);
  EXPECT_EQ(pair.decoder->token_ids()[kPositions], more.tokens[kPositions]);
}

// What depends on pairs of tokens: of the last two, or of this one and the next (as gradients do).
TEST(Predict, LearnsMeansOfContexts) {
  constexpr uint32_t kTokens = 6;
  const std::vector<float> of_pair = Gaussian(kTokens * kTokens * kHidden, 5);
  const auto error_of = [&](const char* text, bool next) {
    Pair pair(text, kPositions, kHidden);
    World world(kTokens);
    double error = 0;
    for (uint64_t step = 0; step < 200; ++step) {
      world.Draw(4, step, 0.0f);
      for (size_t i = 0; i < world.tokens.size(); ++i) {
        const size_t p = i % kPositions;
        const bool inside = next ? p + 1 < kPositions : p > 0;
        const uint32_t other = inside ? world.tokens[next ? i + 1 : i - 1] : 0;
        const size_t row = (world.tokens[i] * kTokens + other) * kHidden;
        std::copy_n(&of_pair[row], kHidden, &world.x[i * kHidden]);
      }
      std::vector<float> y;
      EXPECT_TRUE(Step(&pair, world, Ids(4), &y).ok());
      if (step >= 150) error += RelativeError(world.x, y) / 50;
    }
    return error;
  };
  const double tokens = error_of("predict(quant(2, token))", false);
  EXPECT_LT(error_of("predict(quant(2, token), context=2)", false), 0.3 * tokens);
  EXPECT_LT(error_of("predict(quant(2, token), context=3)", false), 0.5 * tokens);
  EXPECT_GT(error_of("predict(quant(2, token), context=2)", true), 0.8 * tokens);
  // The last position of a sample has no next token: it is the mean of all.
  EXPECT_LT(error_of("predict(quant(2, token), context=2, next)", true), 0.5 * tokens);
}

// Rows in the direction of what was learned, longer or shorter; then in the opposite one.
TEST(Predict, AGainFollowsTheLengthOfRows) {
  const std::vector<float> direction = Gaussian(kHidden, 6);
  Pair pair("predict(quant(2, token))", kPositions, kHidden);
  World world(1);
  std::vector<float> y;
  const auto step = [&](uint64_t number, float length) {
    world.Draw(1, number, 0.0f);
    for (size_t i = 0; i < world.x.size(); ++i)
      world.x[i] = length * direction[i % kHidden] * static_cast<float>(1 + i / kHidden % 3);
    EXPECT_TRUE(Step(&pair, world, Ids(1), &y).ok());
    return RelativeError(world.x, y);
  };
  for (uint64_t number = 0; number < 100; ++number) step(number, 1.0f);
  for (float length : {1.0f, 0.5f, 2.0f}) EXPECT_LT(step(100, length), 0.05) << length;
  Pair direct("quant(2, token)", kPositions, kHidden);
  EXPECT_LT(step(101, -1.0f), 1.01 * RelativeError(world.x, direct.RoundTrip(world.x, Ids(1))))
      << "no worse than without a prediction";
}

TEST(Predict, MemoryIsBounded) {
  CodecOptions options = Pair::Options(kPositions, kHidden);
  options.predictor_bytes =
      4 * kHidden * (kPositions + 8);  // positions, the mean of all, and 7 tokens
  Pair pair("predict(quant(4))", options);
  World world(500);
  std::vector<float> y;
  for (uint64_t step = 0; step < 20; ++step) {
    world.Draw(3, step, 0.1f);
    ASSERT_TRUE(Step(&pair, world, Ids(3), &y).ok());
    ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value());
  }
  const std::vector<float> row(kHidden, 1.0f);
  for (const char* text : {"predict(quant(4))", "predict(quant(4), context=3)"}) {
    // Of eight rows beside the positions', two contexts get two each.
    Predictor predictor(Spec(text), {kPositions, kHidden}, options.predictor_bytes);
    for (uint32_t t = 0; t < 1000; ++t) {
      const std::vector<uint32_t> tokens(kPositions, t);
      for (int64_t p : {0, 1, 5}) predictor.Learn(tokens, p, row.data());
      predictor.EndFrame();
    }
    EXPECT_EQ(predictor.bytes(), options.predictor_bytes) << text;
    EXPECT_LE(predictor.bytes(), PredictorBytes(Spec(text), pair.Dims(1), 1000)) << text;
  }
  options.predictor_bytes = 0;  // still the mean of all
  Pair least("predict(quant(4))", options);
  ASSERT_TRUE(Step(&least, world, Ids(3), &y).ok());
}

TEST(Predict, ANanDoesNotStay) {
  World world(5);
  for (const char* text :
       {"predict(quant(4, token))", "delta(quant(4), cold=predict(quant(4)))", "predict(bf16)"}) {
    Pair pair(text, kPositions, kHidden);
    std::vector<float> y;
    for (uint64_t step = 0; step < 6; ++step) {
      world.Draw(2, step, 0.1f);
      if (step == 2) world.x[30] = std::numeric_limits<float>::quiet_NaN();
      if (step == 3) world.x[31] = -std::numeric_limits<float>::infinity();
      ASSERT_TRUE(Step(&pair, world, Ids(2, static_cast<uint32_t>(10 * step)), &y).ok());
      ASSERT_EQ(pair.encoder->StateHash().value(), pair.decoder->StateHash().value()) << text;
      if (step < 2 || step > 3) {
        for (float v : y) ASSERT_TRUE(std::isfinite(v)) << text << " " << step;
      }
    }
  }
}

TEST(Predict, NeedsTokenIdsAndEveryFrame) {
  World world(5);
  world.Draw(1, 0, 0.1f);
  Pair pair("predict(quant(4))", kPositions, kHidden);
  std::vector<float> y;
  World without = world;
  without.tokens.pop_back();
  EXPECT_EQ(Step(&pair, without, {0}, &y).code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::string> frames(3);
  FrameContext context;
  context.token_ids = world.tokens;
  for (std::string& f : frames)
    ASSERT_TRUE(pair.encoder->Encode(View(world.x, pair.Dims(1)), context, &f).ok());
  ASSERT_TRUE(pair.Decode(frames[0], 1, {0}, &y).ok());
  const uint64_t hash = pair.decoder->StateHash().value();
  EXPECT_EQ(pair.Decode(frames[2], 3, {0}, &y).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(pair.Decode(frames[0], 1, {0}, &y).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(pair.decoder->StateHash().value(), hash);
  EXPECT_TRUE(pair.Decode(frames[1], 2, {0}, &y).ok());
}

}  // namespace
}  // namespace isthmus::compress
