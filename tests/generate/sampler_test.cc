#include "worker/generate/sampler.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/generate/fake_decoder.h"

namespace isthmus::generate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Draws(const SamplerOptions& options, int count) {
  const std::vector<float> logits = {1, 3, 2, 3};
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(PickToken(logits, options, i).value());
  return out;
}

TEST(Sampler, TheSameSeedGivesTheSameTokensAndAnotherSeedOthers) {
  SamplerOptions options;
  options.temperature = 2;
  const auto first = Draws(options, 50);
  EXPECT_EQ(first, Draws(options, 50));
  options.seed = 2;
  EXPECT_NE(first, Draws(options, 50));
}

TEST(Sampler, GreedyTakesTheFirstOfTheLikeliest) {
  SamplerOptions options;
  options.greedy = true;
  EXPECT_THAT(Draws(options, 3), ElementsAre(1, 1, 1));
}

TEST(Sampler, TopKLeavesTheOthersOut) {
  SamplerOptions options;
  options.temperature = 100;
  options.top_k = 2;
  for (const int32_t token : Draws(options, 200)) EXPECT_TRUE(token == 1 || token == 3) << token;
}

// 4,000 draws: the standard deviation of a share is below 0.008, the tolerance five times that.
TEST(Sampler, SharesAreThoseOfTheSoftmaxAtItsTemperature) {
  SamplerOptions options;
  options.temperature = 2;
  options.top_k = 0;
  std::vector<double> shares(4);
  for (const int32_t token : Draws(options, 4000)) shares[token] += 1.0 / 4000;
  const double total = std::exp(0.5) + 2 * std::exp(1.5) + std::exp(1.0);
  EXPECT_NEAR(shares[0], std::exp(0.5) / total, 0.04);
  EXPECT_NEAR(shares[1], std::exp(1.5) / total, 0.04);
  EXPECT_NEAR(shares[2], std::exp(1.0) / total, 0.04);
  EXPECT_NEAR(shares[3], std::exp(1.5) / total, 0.04);
}

TEST(Sampler, AModelThatDivergedIsNamedInsteadOfSampled) {
  const std::vector<float> logits = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THAT(PickToken(logits, {}, 0).status().message(), HasSubstr("token 1 is nan"));
}

std::vector<int32_t> Continue(FakeDecoder* decoder, std::vector<int32_t> prompt,
                              const GenerateOptions& options) {
  std::vector<int32_t> out;
  EXPECT_TRUE(Generate(decoder, std::move(prompt), options, [&](int32_t token) {
                out.push_back(token);
                return true;
              }).ok());
  return out;
}

TEST(Generate, GivesTheModelEachTokenOnce) {
  FakeDecoder decoder(10, 20);
  GenerateOptions options;
  options.tokens = 3;
  options.sampling.greedy = true;
  EXPECT_THAT(Continue(&decoder, {4, 5}, options), ElementsAre(6, 7, 8));
  EXPECT_THAT(decoder.appended(), ElementsAre(std::vector<int32_t>{4, 5}, std::vector<int32_t>{6},
                                              std::vector<int32_t>{7}));
}

TEST(Generate, GoesOnFromTheLastHalfWhereTheContextIsFull) {
  FakeDecoder decoder(4, 20);
  GenerateOptions options;
  options.tokens = 5;
  options.sampling.greedy = true;
  EXPECT_THAT(Continue(&decoder, {0, 1, 2}, options), ElementsAre(3, 4, 5, 6, 7));
  EXPECT_THAT(decoder.appended(), ElementsAre(std::vector<int32_t>{0, 1, 2},
                                              std::vector<int32_t>{3}, std::vector<int32_t>{3, 4},
                                              std::vector<int32_t>{5}, std::vector<int32_t>{6}));
}

TEST(Generate, ALongPromptKeepsItsEnd) {
  FakeDecoder decoder(4, 20);
  GenerateOptions options;
  options.tokens = 1;
  options.sampling.greedy = true;
  EXPECT_THAT(Continue(&decoder, {0, 1, 2, 3, 4, 5}, options), ElementsAre(6));
  EXPECT_THAT(decoder.appended().front(), ElementsAre(2, 3, 4, 5));
}

TEST(Generate, StopsAtTheEndOfATextAndWhenItIsTold) {
  FakeDecoder decoder(10, 20);
  GenerateOptions options;
  options.sampling.greedy = true;
  options.end = 7;
  EXPECT_THAT(Continue(&decoder, {5}, options), ElementsAre(6));
  int emitted = 0;
  EXPECT_TRUE(Generate(&decoder, {1}, options, [&](int32_t) { return ++emitted < 2; }).ok());
  EXPECT_EQ(emitted, 2);
}

TEST(Generate, NeedsAToken) {
  FakeDecoder decoder(10, 20);
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&decoder, {}, {}, [](int32_t) { return true; })));
}

}  // namespace
}  // namespace isthmus::generate
