// Plans of resumed jobs: they stay with what the daemons keep of them.
#include "coordinator/planner/planner_resume.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class PlannerResumeTest : public ::testing::Test {
 protected:
  void Nodes(std::vector<NodeInfo> nodes, double mbit, double round_trip_ms) {
    in_.topology.Clear();
    for (NodeInfo& n : nodes) *in_.topology.add_nodes() = n;
    JoinAll(&in_.topology, mbit, round_trip_ms);
  }
  PlannedJob Plan() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? *planned : PlannedJob();
  }
  static std::vector<int> Layers(const isthmus::Plan& plan) {
    std::vector<int> n;
    for (const RankPlan& s : plan.ranks()) n.push_back(s.end_layer() - s.first_layer());
    return n;
  }
  static std::string Forward(const isthmus::Plan& plan) {
    return FormatCodec(plan.links(0).forward());
  }
  static std::string Backward(const isthmus::Plan& plan) {
    return FormatCodec(plan.links(0).backward());
  }

  PlannerInput in_ = [] {
    PlannerInput in;
    in.job_id = "bible-1";
    in.job = MakeJob();
    in.generation = 3;
    return in;
  }();
};

TEST_F(PlannerResumeTest, AResumedJobStaysWhereItWas) {
  const auto order = [](const isthmus::Plan& plan) {
    std::vector<std::string> names;
    for (const RankPlan& s : plan.ranks()) names.push_back(s.node_name());
    return names;
  };
  in_.job.mutable_strategy()->set_stages(2);
  in_.start_step = 10;
  in_.from_checkpoint = true;
  Nodes({MakeNode("a", 10.0), MakeNode("b", 10.2)}, 1000, 1);
  const isthmus::Plan before = Plan().plan;
  Nodes({MakeNode("a", 10.2), MakeNode("b", 10.0)}, 1000, 1);  // measured once more
  ASSERT_NE(order(Plan().plan), order(before));                // without `previous` it would move
  in_.previous = before;
  const PlannedJob kept = Plan();
  EXPECT_EQ(order(kept.plan), order(before));
  EXPECT_EQ(Layers(kept.plan), Layers(before));
  EXPECT_THAT(kept.plan.explanation(), Contains(HasSubstr("kept where it was")));

  Nodes({MakeNode("a", 10), MakeNode("b", 30)}, 1000, 1);  // now it is worth moving
  EXPECT_NE(Layers(Plan().plan), Layers(before));
  Nodes({MakeNode("a", 10.2), MakeNode("c", 10.0)}, 1000, 1);  // b is lost
  EXPECT_THAT(order(Plan().plan), Contains("c"));
  Nodes({MakeNode("a", 10.2), MakeNode("b", 10.0)}, 1000, 1);
  in_.job.mutable_strategy()->set_stages(1);  // the job says otherwise
  EXPECT_EQ(Plan().plan.ranks_size(), 1);
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_strategy()->add_layers_per_stage(1);
  in_.job.mutable_strategy()->add_layers_per_stage(5);
  EXPECT_THAT(Layers(Plan().plan), ElementsAre(1, 5));
  in_.job.mutable_strategy()->clear_layers_per_stage();
  for (const char* name : {"a", "b"}) {
    if (order(before)[0] != name) in_.job.mutable_strategy()->add_nodes(name);
  }
  in_.job.mutable_strategy()->add_nodes(order(before)[0]);  // the other way round
  EXPECT_EQ(order(Plan().plan)[1], order(before)[0]);
}

// Three daemons that started at once on one host: the one that is restarted alone measures three
// times the speed. It moved to the last stage, and nobody was told why the states were lost.
TEST_F(PlannerResumeTest, AMoveIsToldWithItsReason) {
  using ::testing::AllOf;
  using ::testing::Not;
  using ::testing::StartsWith;
  const auto changed = StartsWith("placement changed: the job was on ");
  in_.job = MakeJob(3, 64, 32);
  in_.job.mutable_model()->set_vocabulary(1024);  // the last stage has the most to do
  in_.job.mutable_strategy()->set_stages(3);
  in_.job.mutable_compression()->set_forward("delta(quant(3), buffer=2)");
  in_.job.mutable_compression()->set_backward("quant(6)");
  Nodes({MakeNode("n1", 10), MakeNode("n2", 10), MakeNode("n3", 12.2)}, 10000, 0.1);
  const isthmus::Plan before = Plan().plan;
  ASSERT_EQ(before.ranks(2).node_name(), "n3");
  EXPECT_THAT(before.explanation(), Not(Contains(changed)));
  in_.previous = before;
  in_.start_step = 10;
  in_.from_checkpoint = true;
  EXPECT_THAT(Plan().plan.explanation(), Not(Contains(changed)));
  EXPECT_THAT(Plan().warnings, Not(Contains(changed)));

  Nodes({MakeNode("n1", 10), MakeNode("n2", 30), MakeNode("n3", 12.2)}, 10000, 0.1);
  const PlannedJob moved = Plan();
  ASSERT_EQ(moved.plan.ranks(2).node_name(), "n2");
  const auto slower =
      AllOf(changed, HasSubstr("n3 (layer 2); by the newest figures of daemons (n1 10, n2 30, "),
            HasSubstr("12.2 GFLOP/s) and links a step would take "), HasSubstr("n2 (layer 2), "),
            HasSubstr(" % more (up to 25 % are accepted"),
            HasSubstr("layers_per_stage: [1, 1, 1] is held in place"));
  EXPECT_THAT(moved.plan.explanation(), Contains(slower));
  EXPECT_THAT(moved.warnings, Contains(AllOf(slower, HasSubstr("begin anew"))));

  Nodes({MakeNode("n1", 10), MakeNode("n4", 10), MakeNode("n3", 12.2)}, 10000, 0.1);
  EXPECT_THAT(Plan().warnings,
              Contains(AllOf(changed, HasSubstr("daemon n2 (identity id-n2) is not to be had"))));
  Nodes({MakeNode("n1", 10), MakeNode("n2", 10), MakeNode("n3", 12.2)}, 10000, 0.1);
  in_.job.mutable_strategy()->set_stages(2);
  EXPECT_THAT(Plan().warnings,
              Contains(AllOf(changed, HasSubstr("the job says otherwise now (strategy.stages)"))));

  in_.job.mutable_strategy()->set_stages(3);  // and what the plan tells one to do
  for (const RankPlan& s : before.ranks()) {
    in_.job.mutable_strategy()->add_nodes(s.node_name());
    in_.job.mutable_strategy()->add_layers_per_stage(1);
  }
  Nodes({MakeNode("n1", 10), MakeNode("n2", 30), MakeNode("n3", 12.2)}, 10000, 0.1);
  EXPECT_EQ(Plan().plan.ranks(2).node_name(), "n3");
  EXPECT_THAT(Plan().warnings, Not(Contains(changed)));
}

// "12 % longer than on d0, d1" moved a job that was on d0, d1: another cut, by the noise of a
// measurement.
TEST_F(PlannerResumeTest, NoiseOfAMeasurementMovesNoJobOnItsOwnDaemons) {
  in_.job = MakeJob(8);
  in_.job.mutable_strategy()->set_stages(2);
  in_.start_step = 10;
  in_.from_checkpoint = true;
  Nodes({MakeNode("d0", 40), MakeNode("d1", 40)}, 1000, 1);
  const isthmus::Plan before = Plan().plan;
  for (const double noise : {0.8, 0.9, 1.1, 1.25}) {
    for (const char* who : {"d0", "d1"}) {
      Nodes({MakeNode("d0", who == std::string("d0") ? 40 * noise : 40),
             MakeNode("d1", who == std::string("d1") ? 40 * noise : 40)},
            1000, 1);
      in_.previous = before;
      const isthmus::Plan kept = Plan().plan;
      EXPECT_EQ(Layers(kept), Layers(before)) << who << " x " << noise;
      EXPECT_EQ(kept.ranks(0).node_name(), before.ranks(0).node_name()) << who << " x " << noise;
    }
  }
  // Where it is worth it, the message says which layers go where.
  Nodes({MakeNode("d0", 40), MakeNode("d1", 160)}, 1000, 1);
  const PlannedJob moved = Plan();
  ASSERT_NE(Layers(moved.plan), Layers(before));
  EXPECT_THAT(moved.plan.explanation(),
              Contains(::testing::ContainsRegex("placement changed: the job was on d. "
                                                ".layers 0-3., d. .layers 4-7.; by .*d0 40, d1 "
                                                "160 GFLOP/s.* on d. .layers? 0.*, d. .layers?")));
}

TEST_F(PlannerResumeTest, WhatStepsTookIsSaid) {
  Nodes({MakeNode("a", 10), MakeNode("b", 10)}, 1000, 1);
  in_.job.mutable_strategy()->set_stages(2);
  in_.compute_factors = {{"id-a", 1.8}, {"id-b", 1.05}};
  const isthmus::Plan plan = Plan().plan;
  EXPECT_THAT(plan.explanation(), Contains(HasSubstr("1.8 x the measured block")));
  EXPECT_THAT(plan.explanation(), ::testing::Not(Contains(HasSubstr("1.1 x the measured"))));
}

TEST_F(PlannerResumeTest, AMoveWithoutStatesIsNoWarning) {
  in_.job.mutable_strategy()->set_stages(2);
  in_.job.mutable_compression()->set_forward("quant(4)");
  in_.job.mutable_compression()->set_backward("quant(4)");
  Nodes({MakeNode("a", 10), MakeNode("b", 10)}, 1000, 1);
  in_.previous = Plan().plan;
  in_.start_step = 10;
  in_.from_checkpoint = true;
  Nodes({MakeNode("a", 10), MakeNode("c", 10)}, 1000, 1);
  const PlannedJob moved = Plan();
  EXPECT_THAT(moved.plan.explanation(), Contains(HasSubstr("placement changed")));
  EXPECT_THAT(moved.warnings, ::testing::Not(Contains(HasSubstr("placement changed"))));
}

TEST_F(PlannerResumeTest, AResumedJobKeepsTheCodecsOfAuto) {
  in_.job.mutable_strategy()->set_stages(2);
  in_.start_step = 10;
  in_.from_checkpoint = true;
  Nodes({MakeNode("a", 10), MakeNode("b", 10)}, 2, 1);
  const isthmus::Plan before = Plan().plan;
  double mbit = 2;
  while (mbit < 10 && Forward(Plan().plan) == Forward(before))
    Nodes({MakeNode("a", 10), MakeNode("b", 10)}, mbit += 0.1, 1);
  const std::string other = Forward(Plan().plan);
  ASSERT_NE(other, Forward(before));  // a little more rate, and `auto` chooses anew
  in_.previous = before;
  EXPECT_EQ(Forward(Plan().plan), Forward(before));
  EXPECT_EQ(Backward(Plan().plan), Backward(before));
  EXPECT_THAT(Plan().plan.explanation(), Contains(HasSubstr("with the codecs it had")));
  EXPECT_THAT(Plan().plan.explanation(),
              Contains(HasSubstr(absl::StrCat("-> ", Forward(before), " as it had"))));
  EXPECT_THAT(Plan().plan.explanation(), Not(Contains(HasSubstr("as the job says"))));
  in_.job.mutable_compression()->set_forward("bf16");  // the job says otherwise
  EXPECT_EQ(Forward(Plan().plan), "bf16");
  in_.job.mutable_compression()->set_forward("auto");
  in_.previous.mutable_job()->mutable_compression()->set_forward(Forward(before));  // it said so
  in_.previous.mutable_job()->mutable_compression()->set_tied("auto");  // nothing is kept of it
  EXPECT_EQ(Forward(Plan().plan), other);
}

}  // namespace
}  // namespace isthmus::coordinator
