// The decoder against the stage that trains: the same model gives a text the same loss.
#include "worker/engine/gpt2_decoder.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/pipeline.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::engine {
namespace {

using testing::HasSubstr;

ModelSpec Model() {
  ModelSpec model = TinyJob().model();
  model.set_norm_epsilon(1e-5);
  return model;
}

const std::vector<int32_t> kText = {3, 1, 41, 5, 9, 26, 5, 35, 8, 49, 7, 0};

double Loss(const std::vector<float>& logits, int32_t target) {
  double most = -1e30, sum = 0;
  for (const float x : logits) most = std::max<double>(most, x);
  for (const float x : logits) sum += std::exp(x - most);
  return std::log(sum) + most - logits[target];
}

class DecoderTest : public testing::Test {
 protected:
  DecoderTest() : pipeline_(MakePlan(TinyJob(), {4})) {
    pipeline_.Gradients(0);
    pipeline_.Apply(0, 0.05);  // away from the even start
    decoder_ =
        MakeGpt2Decoder(Model(), MemorySource(pipeline_.ExportWeights()), {"cpu", 1}).value();
  }

  double StageLoss() {
    worker::MicroBatch batch;
    const std::vector<uint32_t> tokens(kText.begin(), kText.end() - 1),
        targets(kText.begin() + 1, kText.end());
    batch.samples = 1;
    batch.positions = static_cast<int64_t>(tokens.size());
    batch.tokens = tokens;
    batch.targets = targets;
    batch.train = false;
    return pipeline_.stage(0).Forward(batch, {})->loss_sum;
  }

  Pipeline pipeline_;
  std::unique_ptr<generate::Decoder> decoder_;
};

// fp32 in another order of summing: 1e-5 of a loss of about 40.
TEST_F(DecoderTest, TokenByTokenItHasTheLossOfTheStage) {
  double loss = 0;
  for (size_t i = 0; i + 1 < kText.size(); ++i)
    loss += Loss(decoder_->Append({kText[i]}).value(), kText[i + 1]);
  EXPECT_NEAR(loss, StageLoss(), 1e-4);
}

TEST_F(DecoderTest, AHeadOfItsOwnIsTaken) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_tied(false);
  pipeline_ = Pipeline(MakePlan(job, {4}));
  pipeline_.Gradients(0);
  pipeline_.Apply(0, 0.05);
  ModelSpec model = Model();
  model.set_tied(false);
  decoder_ = MakeGpt2Decoder(model, MemorySource(pipeline_.ExportWeights()), {"cpu", 1}).value();
  double loss = 0;
  for (size_t i = 0; i + 1 < kText.size(); ++i)
    loss += Loss(decoder_->Append({kText[i]}).value(), kText[i + 1]);
  EXPECT_NEAR(loss, StageLoss(), 1e-4);
  EXPECT_THAT(
      MakeGpt2Decoder(model, MemorySource(Pipeline(MakePlan(TinyJob(), {4})).ExportWeights()),
                      {"cpu", 1})
          .status()
          .message(),
      HasSubstr("lm_head.weight is missing"));
}

TEST_F(DecoderTest, AnyCutOfTheTextGivesTheSameLogits) {
  const auto whole = decoder_->Append(kText).value();
  decoder_->Clear();
  EXPECT_EQ(decoder_->seen(), 0);
  ASSERT_TRUE(decoder_->Append(absl::MakeConstSpan(kText).first(5)).ok());
  ASSERT_TRUE(decoder_->Append(absl::MakeConstSpan(kText).subspan(5, 4)).ok());
  const auto parts = decoder_->Append(absl::MakeConstSpan(kText).subspan(9)).value();
  ASSERT_EQ(whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], parts[i], 1e-4) << i;
}

TEST_F(DecoderTest, WhatDoesNotFitIsRefused) {
  const std::vector<int32_t> long_text(17, 1);
  EXPECT_THAT(decoder_->Append(long_text).status().message(), HasSubstr("context is 16"));
  EXPECT_THAT(decoder_->Append({50}).status().message(), HasSubstr("vocabulary of 50"));
  EXPECT_FALSE(decoder_->Append({}).ok());
}

TEST_F(DecoderTest, TheEpsilonOfTheNormsCounts) {
  ModelSpec model = Model();
  model.set_norm_epsilon(0.1);
  const auto other =
      MakeGpt2Decoder(model, MemorySource(pipeline_.ExportWeights()), {"cpu", 1}).value();
  EXPECT_GT(std::abs(other->Append(kText).value()[0] - decoder_->Append(kText).value()[0]), 1e-4);
}

TEST_F(DecoderTest, MissingTensorsAndOtherShapesAreNamed) {
  ModelSpec model = Model();
  model.set_layers(5);
  EXPECT_THAT(
      MakeGpt2Decoder(model, MemorySource(pipeline_.ExportWeights()), {}).status().message(),
      HasSubstr("transformer.h.4."));
  model = Model();
  model.set_context(17);
  EXPECT_THAT(
      MakeGpt2Decoder(model, MemorySource(pipeline_.ExportWeights()), {}).status().message(),
      HasSubstr("wpe.weight is [16, 32]"));
}

}  // namespace
}  // namespace isthmus::engine
