#include "coordinator/planner/reduced_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"

namespace isthmus::coordinator {
namespace {

// At a rate of `mbit`, of 1024 x 512 elements and a step of 10 s.
std::string Choice(JobSpec job, const std::string& wanted, double mbit, double four_bit_loss,
                   std::string* why = nullptr) {
  FillDefaults(&job);
  std::string words;
  const auto seconds = [&](const CodecSpec& codec) {
    return 8e-6 / mbit * static_cast<double>(EncodedBytes(codec, {1, 1024, 512}, true));
  };
  const auto codec = ChooseReduced(job, wanted, four_bit_loss, 10, seconds, &words);
  if (why != nullptr) *why = words;
  return codec.ok() ? FormatCodec(*codec) : codec.status().ToString();
}

TEST(ReducedChoice, FewerBitsHaveToBeWorthTheirPrice) {
  std::string why;
  EXPECT_EQ(Choice({}, "auto", 1000, 0.001), "bf16");
  EXPECT_EQ(Choice({}, "auto", 60, 0.001, &why), "quant(8, token, symmetric)");
  EXPECT_THAT(why, ::testing::MatchesRegex(".* with bf16, .* with none, .* with quant\\(8, token, "
                                           "symmetric\\), .* -> quant\\(8, token, symmetric\\)"));
  EXPECT_EQ(Choice({}, "auto", 10, 0.001), "quant(4, token, symmetric)");
  EXPECT_EQ(Choice({}, "auto", 10, 0.01), "quant(8, token, symmetric)") << "a dearer loss";
  JobSpec job;
  job.mutable_compression()->set_min_bits(6);
  EXPECT_EQ(Choice(job, "auto", 1, 0.001), "quant(8, token, symmetric)");
  job.mutable_compression()->clear_min_bits();
  job.mutable_recipe()->set_optimizer("quantized_adam");
  EXPECT_EQ(Choice(job, "auto", 1, 0.001), "ef(quant(4, token, symmetric))");
}

TEST(ReducedChoice, WhatTheJobSaysIsTaken) {
  std::string why;
  EXPECT_EQ(Choice({}, "topk(0.01)", 1, 0.001, &why), "topk(0.01)");
  EXPECT_EQ(why, "");
}

TEST(ReducedChoice, ALowRankGetsErrorFeedback) {
  std::string why;
  CodecSpec codec = ParseCodec("lowrank(4)").value();
  WithFeedback(&codec, &why);
  EXPECT_EQ(FormatCodec(codec), "ef(lowrank(4))");
  EXPECT_THAT(why, ::testing::HasSubstr("as PowerSGD has it"));
  const std::string before = why;
  WithFeedback(&codec, &why);
  EXPECT_EQ(FormatCodec(codec), "ef(lowrank(4))");
  EXPECT_EQ(why, before);
}

}  // namespace
}  // namespace isthmus::coordinator
