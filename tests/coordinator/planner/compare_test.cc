#include "coordinator/planner/compare.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rng.h"
#include "coordinator/planner/compare_words.h"
#include "coordinator/planner/counted_plan.h"
#include "coordinator/planner/link_load.h"
#include "coordinator/planner/phase_words.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A slow daemon first, two fast ones, and one behind a slow link.
PlannerInput Mixed() {
  PlannerInput in;
  in.job_id = "bible-1";
  in.generation = 1;
  in.job = MakeJob(12, 512, 256);
  for (const auto& [name, gflops] : std::vector<std::pair<std::string, double>>{
           {"slow", 20}, {"lab", 200}, {"home", 100}, {"far", 150}})
    *in.topology.add_nodes() = MakeNode(name, gflops);
  Join(&in.topology, "slow", "lab", 200, 10);
  Join(&in.topology, "slow", "home", 200, 10);
  Join(&in.topology, "lab", "home", 200, 10);
  for (const char* name : {"slow", "lab", "home"}) Join(&in.topology, name, "far", 2, 300);
  return in;
}

std::string Text(const google::protobuf::RepeatedPtrField<std::string>& lines) {
  return absl::StrJoin(lines, "\n");
}

TEST(Compare, APlanOfEachStrategyTheOwnOneLast) {
  const PlannerInput in = Mixed();
  const PlanComparison c = ComparePlans(in).value();
  std::vector<std::string> strategies;
  for (const ComparedPlan& plan : c.plans()) strategies.push_back(plan.strategy());
  EXPECT_THAT(strategies,
              ElementsAre("equal split", "genetic", "random", "no compression", "planner"));
  const PlannedJob ours = MakePlan(in).value();
  const ComparedPlan& own = c.plans(4);
  EXPECT_DOUBLE_EQ(own.step_s(), ours.plan.predicted_step_s());
  EXPECT_DOUBLE_EQ(own.cost_s(), ours.cost_s);
  EXPECT_DOUBLE_EQ(own.times_ours(), 1);
  EXPECT_DOUBLE_EQ(own.tokens_per_s(), 32 * 256 / own.step_s());
  EXPECT_THAT(own.differs(), IsEmpty());
  EXPECT_THAT(own.left_out(), Contains("far"));
  EXPECT_GT(own.tried(), 4);
  for (const ComparedPlan& plan : c.plans()) {
    SCOPED_TRACE(plan.strategy());
    EXPECT_THAT(plan.refusal(), IsEmpty());
    EXPECT_GE(plan.times_ours(), kStagesMustPay);
    int layers = 0;
    for (const ComparedStage& stage : plan.stages()) layers += stage.layers();
    EXPECT_EQ(layers, 12);
  }
  EXPECT_EQ(c.plans(0).tried(), 1);
  EXPECT_EQ(c.plans(2).tried(), 1000);
  EXPECT_GT(c.plans(1).tried(), 100);
  EXPECT_EQ(c.daemons(), 4);
  EXPECT_EQ(c.verdict(), "No other plan that was looked at is better than the planner's.");
  EXPECT_EQ(ComparePlans(in)->SerializeAsString(), c.SerializeAsString()) << "deterministic";
}

TEST(Compare, WordsSayWhatDiffersAndWhatIsGained) {
  PlannerInput in = Mixed();
  in.job.mutable_strategy()->set_stages(2);
  const PlanComparison c = ComparePlans(in).value();
  const ComparedPlan& equal = c.plans(0);
  EXPECT_EQ(equal.stages(0).node_name(), "slow") << "as they are listed";
  EXPECT_EQ(equal.stages(0).layers(), 6);
  EXPECT_GT(equal.times_ours(), 2);
  EXPECT_THAT(Text(equal.differs()), AllOf(HasSubstr("also takes slow"), HasSubstr("leaves out"),
                                           HasSubstr("layers 6 on each stage")));
  EXPECT_THAT(Text(c.plans(3).differs()), HasSubstr("codecs none and none"));
  EXPECT_GT(c.plans(3).busiest_bytes(), c.plans(4).busiest_bytes());
  EXPECT_GT(c.plans(3).busiest_share(), 0);
  EXPECT_THAT(Text(c.gains()),
              AllOf(HasSubstr("codecs: without compression, planned anew for that"),
                    HasSubstr("cut: with equal numbers of layers on the same "
                              "daemons a step takes "),
                    HasSubstr(" times as much")));
}

TEST(Compare, WhatIsNotPossibleSaysWhy) {
  PlannerInput in = Mixed();
  in.topology.mutable_nodes(0)->set_memory_bytes(int64_t{700} << 20);
  in.job.mutable_strategy()->set_stages(4);
  const PlanComparison c = ComparePlans(in).value();
  const ComparedPlan& equal = c.plans(0);
  EXPECT_THAT(equal.refusal(),
              AllOf(HasSubstr("memory: stage 0 with 3 layers"), HasSubstr("slow")));
  EXPECT_EQ(equal.step_s(), 0);
  EXPECT_THAT(equal.stages(), IsEmpty());
  EXPECT_THAT(c.plans(4).refusal(), IsEmpty());
  in.job.mutable_strategy()->set_stages(5);
  EXPECT_EQ(ComparePlans(in).status(), MakePlan(in).status()) << "no plan, no comparison";
}

TEST(Compare, WhereTheJobNamesDaemonsTheOthersMayOrderThem) {
  PlannerInput in = Mixed();
  for (const char* name : {"lab", "far", "home"}) in.job.mutable_strategy()->add_nodes(name);
  const PlanComparison c = ComparePlans(in).value();
  EXPECT_EQ(c.daemons(), 3);
  EXPECT_EQ(c.plans(0).stages(1).node_name(), "far");
  EXPECT_EQ(c.plans(4).stages(1).node_name(), "far");
  EXPECT_LT(c.plans(2).times_ours(), 1) << "far at an end, or idle, is better";
  EXPECT_THAT(c.verdict(), AllOf(HasSubstr("keeps to the job's strategy.nodes"),
                                 HasSubstr("--set 'strategy.nodes=[")));
}

TEST(Compare, ReplicasAndPhases) {
  PlannerInput in = Mixed();
  in.job.mutable_strategy()->set_replicas(2);
  in.job.mutable_strategy()->set_stages(2);
  in.phases.resize(2);
  const PlanComparison c = ComparePlans(in).value();
  for (const ComparedPlan& plan : c.plans()) {
    ASSERT_EQ(plan.stages_size(), 4) << plan.refusal();
    EXPECT_EQ(plan.stages(3).replica(), 1);
  }
  EXPECT_THAT(c.notes(), ElementsAre(HasSubstr("the first one alone")));
}

// Whether the planner's plan is worth it: no one else's is more than its tolerance better. Before
// refine.h and random starts for replicas, and without no compression at all being tried, it was of
// seeds 1, 5, 7, 9, 19, 39, 52 and 57, by up to 25 %.
TEST(Compare, NobodyFindsAMuchBetterPlan) {
  for (const uint64_t seed : {0, 1, 5, 7, 9, 16, 19, 24, 32, 39, 52, 57}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    uint64_t next = 0;
    const auto between = [&](double low, double high) {
      return low * std::pow(high / low, RandomUniform(seed, 7, next++));
    };
    const auto below = [&](int n) { return static_cast<int>(RandomBelow(seed, 7, next++, n)); };
    PlannerInput in;
    in.job_id = "bible-1";
    in.generation = 1;
    const int n = 3 + below(8), layers = 6 + below(19);
    const int context = 128 << below(3), hidden = 128 << below(4);
    in.job = MakeJob(layers, hidden, context);
    const int shape = below(4);
    if (shape == 1) in.job.mutable_strategy()->set_stages(std::min(n, 2 + below(4)));
    if (shape == 2 && n >= 4) {
      in.job.mutable_strategy()->set_replicas(2);
      in.job.mutable_strategy()->set_stages(2);
    }
    for (int i = 0; i < n; ++i) {
      const auto memory = static_cast<int64_t>(between(2e9, 64e9));
      *in.topology.add_nodes() = MakeNode(absl::StrCat("n", i), between(20, 400), memory);
    }
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) {
        const double round_trip_ms = between(2, 150);
        Join(&in.topology, absl::StrCat("n", i), absl::StrCat("n", j), between(10, 2000),
             round_trip_ms);
      }
    }
    const PlanComparison c = ComparePlans(in).value();
    for (const ComparedPlan& plan : c.plans()) {
      if (!plan.refusal().empty()) continue;
      EXPECT_GE(plan.times_ours(), kStagesMustPay) << plan.strategy() << ": " << c.verdict();
    }
  }
}

// ---- words ----

PlannedJob Costing(double cost_s, std::vector<int> layers) {
  PlannedJob planned;
  planned.cost_s = cost_s;
  planned.plan.set_predicted_step_s(cost_s);
  int stage = 0, first = 0;
  for (const int n : layers) {
    RankPlan* rank = planned.plan.add_ranks();
    rank->set_stage(stage++);
    rank->set_node_name(absl::StrCat("n", stage));
    rank->set_first_layer(first);
    rank->set_end_layer(first += n);
  }
  return planned;
}

PlanComparison Against(double cost_s) {
  PlannerInput in;
  in.job.set_name("bible");
  const PlannedJob ours = Costing(1, {2, 2});
  CompareWords words(in, {"n1", "n2"}, ours);
  words.AddPlan("random", Costing(cost_s, {3, 1}), 7);
  words.AddOurs(3);
  return words.Take();
}

TEST(CompareWords, AMuchBetterPlanIsAFaultAndSaysHowToTakeIt) {
  EXPECT_EQ(Against(0.9).verdict(),
            "random is better than the planner's by 10 %, which the planner's search did not find: "
            "that is a fault of it. To take it: --set 'strategy.nodes=[n1, n2]' --set "
            "'strategy.layers_per_stage=[3, 1]'");
  EXPECT_THAT(Against(0.99).verdict(), HasSubstr("within the 2.0 % that the planner gives up"));
  EXPECT_THAT(Against(1.2).verdict(), HasSubstr("No other plan"));
  const PlanComparison c = Against(1.2);
  EXPECT_DOUBLE_EQ(c.plans(0).times_ours(), 1.2);
  EXPECT_EQ(c.plans(0).tried(), 7);
  EXPECT_THAT(c.plans(0).differs(), ElementsAre("layers 3, 1"));
}

// ---- links ----

TEST(LinkLoads, AreTheBytesOfAStepByPair) {
  PlannerInput in = Mixed();
  in.job.mutable_strategy()->set_stages(2);
  const auto sum = [](const Plan& plan) {
    double bytes = 0;
    for (const LinkLoad& load : LinkLoads(plan)) bytes += load.bytes();
    return bytes;
  };
  const Plan two = MakePlan(in)->plan;
  EXPECT_EQ(two.links_size(), 2) << "a boundary, and the tied embedding's";
  ASSERT_EQ(LinkLoads(two).size(), 1u) << "of one pair of daemons";
  EXPECT_NEAR(sum(two), StepBytes(two), 1);
  const LinkLoad load = LinkLoads(two)[0];
  EXPECT_DOUBLE_EQ(load.busy_s(), std::max(load.up_s, load.down_s));
  EXPECT_GT(load.up_s, 8 * load.up_bytes / two.links(0).rate_up_bits_per_s() * 0.99);
  in.job.mutable_strategy()->set_replicas(2);
  const Plan replicas = MakePlan(in)->plan;
  EXPECT_NEAR(sum(replicas), StepBytes(replicas), 1);
  EXPECT_GT(LinkLoads(replicas).size(), 2u);
}

TEST(CountedPlan, IsTheSamePlanWithItsCount) {
  const PlannerInput in = Mixed();
  int64_t priced = 0;
  EXPECT_EQ(MakeCountedPlan(in, &priced)->plan.SerializeAsString(),
            MakePlan(in)->plan.SerializeAsString());
  EXPECT_GT(priced, 4);
  EXPECT_EQ(InputOnCards(in).topology.nodes_size(), 4) << "no card is shared";
}

}  // namespace
}  // namespace isthmus::coordinator
