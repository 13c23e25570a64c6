#include "proto/plan/local_checkpoints.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Plan Asking(int64_t local) {
  Plan plan;
  plan.mutable_job()->mutable_checkpoint()->set_local(local);
  return plan;
}

TEST(LocalCheckpoints, AreAsOftenAsTheJobSays) {
  EXPECT_EQ(LocalEvery(Plan()), 0);
  EXPECT_EQ(LocalEvery(Asking(0)), 0);
  EXPECT_EQ(LocalEvery(Asking(7)), 7);
  EXPECT_FALSE(PacesLocal(Asking(7)));
  EXPECT_EQ(LocalEvery(Asking(kPacedLocal)), 1);
  EXPECT_TRUE(PacesLocal(Asking(kPacedLocal)));
  EXPECT_THAT(WhyNoLocal(Asking(kPacedLocal)), IsEmpty());
}

// The run would depend on how fast disks are.
TEST(LocalCheckpoints, StepsThatOverlapAreDrainedWhereTheJobNamesThemAlone) {
  Plan plan = Asking(kPacedLocal);
  plan.mutable_job()->mutable_strategy()->set_schedule("overlap");
  EXPECT_EQ(LocalEvery(plan), 0);
  EXPECT_FALSE(PacesLocal(plan));
  EXPECT_THAT(WhyNoLocal(plan), HasSubstr("drained"));
  plan.mutable_job()->mutable_checkpoint()->set_local(3);
  EXPECT_EQ(LocalEvery(plan), 3);
}

TEST(LocalCheckpoints, WhatCodecsRememberIsLostWhereTheJobNamesThemAlone) {
  Plan plan = Asking(kPacedLocal);
  *plan.add_links()->mutable_forward() = ParseCodec("quant(4)").value();
  EXPECT_EQ(LocalEvery(plan), 1);
  *plan.add_links()->mutable_forward() = ParseCodec("delta(quant(4))").value();
  EXPECT_EQ(LocalEvery(plan), 0);
  EXPECT_THAT(WhyNoLocal(plan), HasSubstr("codecs"));
  plan.mutable_job()->mutable_checkpoint()->set_local(3);
  EXPECT_EQ(LocalEvery(plan), 3);
}

TEST(LocalCheckpoints, ReplicasThatDoNotAgreeOnAllHaveNone) {
  Plan plan = Asking(3);
  plan.add_replicas();
  plan.add_replicas();
  plan.mutable_job()->mutable_strategy()->set_local_steps(6);
  EXPECT_EQ(LocalEvery(plan), 3);
  plan.mutable_job()->mutable_strategy()->set_fragments(2);
  EXPECT_EQ(LocalEvery(plan), 0);
  EXPECT_THAT(WhyNoLocal(plan), HasSubstr("replicas agree"));
}

}  // namespace
}  // namespace isthmus
