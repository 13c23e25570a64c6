// Plans of replicas that train subnetworks: slices by speed and memory, what they cost and say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "coordinator/planner/compute_table.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/slices.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/action_check.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kGiB = int64_t{1} << 30;

class PlannerSubnetworksTest : public ::testing::Test {
 protected:
  PlannerSubnetworksTest() {
    in_.job_id = "bible-1";
    in_.generation = 3;
    in_.job.set_name("bible");
    in_.job = MakeJob();
    StrategySpec* s = in_.job.mutable_strategy();
    s->Clear();
    s->set_replicas(2);
    s->set_stages(1);
    s->set_local_steps(50);
    s->set_subnetworks("units");
    FillDefaults(&in_.job);
  }
  void Nodes(const std::vector<NodeInfo>& nodes, double mbit = 100) {
    in_.topology.Clear();
    for (const NodeInfo& n : nodes) *in_.topology.add_nodes() = n;
    JoinAll(&in_.topology, mbit, 20);
  }
  Plan Make() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? planned->plan : Plan();
  }
  std::string Refusal() { return std::string(MakePlan(in_).status().message()); }

  PlannerInput in_;
};

TEST_F(PlannerSubnetworksTest, ThePlanIsWholeAndItsListsHold) {
  Nodes({MakeNode("lab", 20), MakeNode("home", 20), MakeNode("cafe", 20), MakeNode("attic", 20)});
  for (const int stages : {1, 2}) {
    in_.job.mutable_strategy()->set_stages(stages);
    const Plan plan = Make();
    ASSERT_THAT(plan.ranks(), SizeIs(2 * stages));
    EXPECT_TRUE(CheckDeal(plan).ok()) << CheckDeal(plan);
    EXPECT_TRUE(CheckActions(plan).ok()) << CheckActions(plan);
    int slices = 0;
    for (const GroupPlan& group : plan.groups()) {
      EXPECT_TRUE(CheckGroup(plan, group).ok()) << CheckGroup(plan, group);
      slices += group.value() == GroupPlan::SLICE;
      if (group.value() != GroupPlan::DIFFERENCE || group.tensors() != GroupPlan::OWN) continue;
      const int64_t elements = OwnElements(plan, group.ranks(0));
      EXPECT_GE(group.rows() * group.width(), elements);
      EXPECT_LT(group.rows() * group.width(), elements + group.width());
    }
    EXPECT_EQ(slices, stages);
    EXPECT_EQ(plan.replicas(1).slice(), 1);
    EXPECT_EQ(plan.deal().seed(), in_.job.seed());
    EXPECT_THAT(plan.explanation(),
                Contains(HasSubstr("subnetworks: each replica trains a slice")));
    EXPECT_THAT(plan.explanation(), Contains(HasSubstr("dealt anew after 50 steps: 50 % on ")));
  }
}

TEST_F(PlannerSubnetworksTest, SlicesGoBySpeed) {
  Nodes({MakeNode("fast", 30), MakeNode("slow", 10)});
  const Plan plan = Make();
  const int fast = plan.ranks(0).node_name() == "fast" ? 0 : 1;
  EXPECT_NEAR(plan.deal().shares(fast), 0.75, 0.01);
  EXPECT_NEAR(plan.deal().shares(1 - fast), 0.25, 0.01);
  // Then both take about as long for as many samples.
  EXPECT_NEAR(plan.replicas(0).samples(), 16, 4);
}

// What the mode is for: less compute, memory and bytes than replicas of the whole model.
TEST_F(PlannerSubnetworksTest, CostsLessThanReplicasOfTheWholeModel) {
  Nodes({MakeNode("a", 20), MakeNode("b", 20), MakeNode("c", 20), MakeNode("d", 20)}, 5);
  in_.job.mutable_strategy()->set_replicas(4);
  const Plan sliced = Make();
  in_.job.mutable_strategy()->set_subnetworks("none");
  const Plan whole = Make();
  EXPECT_LT(sliced.predicted_step_s(), 0.6 * whole.predicted_step_s());
  EXPECT_LT(sliced.ranks(1).predicted_step_s(), 0.5 * whole.ranks(1).predicted_step_s());
  EXPECT_LT(sliced.ranks(1).memory_bytes(), whole.ranks(1).memory_bytes());
  EXPECT_GT(sliced.ranks(0).memory_bytes(), sliced.ranks(1).memory_bytes())
      << "the whole model comes together there";
  EXPECT_DOUBLE_EQ(PredictedComputeSeconds(sliced, sliced.ranks(1), in_.topology.nodes(0)),
                   sliced.ranks(1).predicted_step_s());
}

// Weights of 1.2 GiB, 4.8 with gradients and moments: no daemon holds them alone.
TEST_F(PlannerSubnetworksTest, AModelThatNoDaemonHoldsFitsInSlices) {
  in_.job.mutable_model()->set_layers(24);
  in_.job.mutable_model()->set_hidden(1024);
  in_.job.mutable_model()->set_heads(16);
  in_.job.mutable_recipe()->set_micro_batch(1);
  Nodes({MakeNode("a", 20, 5 * kGiB), MakeNode("b", 20, 5 * kGiB), MakeNode("c", 20, 5 * kGiB),
         MakeNode("d", 20, 3 * kGiB)},
        1000);
  in_.job.mutable_strategy()->set_replicas(4);
  const Plan plan = Make();
  ASSERT_THAT(plan.ranks(), SizeIs(4));
  double sum = 0, least = 1;
  for (const double share : plan.deal().shares()) {
    sum += share;
    least = std::min(least, share);
  }
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_LT(least, 0.25) << "the one with 3 GiB";
  for (const RankPlan& rank : plan.ranks())
    EXPECT_LE(rank.memory_bytes(), rank.node_name() == "d" ? 3 * kGiB : 5 * kGiB);
  // A small one that comes first is not the one that holds the whole model now and then, and takes
  // less than an even share.
  Nodes({MakeNode("a", 20, 5 * kGiB / 2), MakeNode("b", 20, 5 * kGiB), MakeNode("c", 20, 5 * kGiB),
         MakeNode("d", 20, 5 * kGiB)},
        1000);
  const Plan other = Make();
  ASSERT_THAT(other.ranks(), SizeIs(4));
  for (const RankPlan& rank : other.ranks()) {
    if (rank.node_name() != "a") continue;
    EXPECT_GT(rank.replica(), 0);
    EXPECT_LT(other.deal().shares(other.replicas(rank.replica()).slice()), 0.25);
    EXPECT_LE(rank.memory_bytes(), 5 * kGiB / 2);
  }
  in_.job.mutable_strategy()->set_subnetworks("none");
  EXPECT_THAT(Refusal(), HasSubstr("memory: "));
  in_.job.mutable_strategy()->set_subnetworks("units");
  in_.job.mutable_strategy()->set_replicas(2);
  EXPECT_THAT(Refusal(), HasSubstr("memory: "));
}

TEST_F(PlannerSubnetworksTest, AutoTakesACodecThatCarriesWeights) {
  Nodes({MakeNode("a", 20), MakeNode("b", 20)}, 1);
  in_.job.mutable_compression()->set_gradients("auto");
  const Plan plan = Make();
  EXPECT_EQ(plan.job().compression().gradients(), "bf16");
  for (const GroupPlan& group : plan.groups())
    EXPECT_EQ(FormatCodec(group.contribution()), "bf16") << group.id();
}

TEST_F(PlannerSubnetworksTest, WholeLayersAreSharedByAll) {
  Nodes({MakeNode("a", 20), MakeNode("b", 20)});
  const Plan none = Make();
  in_.job.mutable_strategy()->set_whole_layers(2);
  const Plan two = Make();
  EXPECT_EQ(two.deal().whole_layers(), 2);
  EXPECT_GT(two.predicted_step_s(), none.predicted_step_s());
  EXPECT_GT(OwnElements(two, 0), OwnElements(none, 0));
  EXPECT_THAT(two.explanation(), Contains(HasSubstr("2 first and 2 last layers are whole in all")));
}

// A resumed job deals as before: slices of another size would be other subnetworks.
TEST_F(PlannerSubnetworksTest, AResumeKeepsTheShares) {
  Nodes({MakeNode("lab", 40), MakeNode("home", 20)});
  const Plan first = Make();
  in_.previous = first;
  in_.from_checkpoint = true;
  in_.start_step = 100;
  in_.generation = 4;
  in_.topology.mutable_nodes(0)->set_block_forward_s(1.1 / 40);
  const Plan again = Make();
  EXPECT_EQ(again.deal().SerializeAsString(), first.deal().SerializeAsString());
}

// A daemon that measures alone what it measured beside others seems several times as fast. It got
// other shares, and the resumed run was another one.
TEST_F(PlannerSubnetworksTest, WhateverIsMeasuredAResumeKeepsTheShares) {
  for (const char* subnetworks : {"units", "none"}) {
    in_.job.mutable_strategy()->set_subnetworks(subnetworks);
    in_.previous.Clear();
    in_.from_checkpoint = false;
    in_.start_step = 0;
    Nodes({MakeNode("lab", 40), MakeNode("home", 20)});
    const Plan first = Make();
    in_.previous = first;
    in_.from_checkpoint = true;
    in_.start_step = 100;
    Nodes({MakeNode("lab", 40), MakeNode("home", 160)});
    const Plan again = Make();
    ASSERT_THAT(again.replicas(), SizeIs(2));
    EXPECT_EQ(again.deal().SerializeAsString(), first.deal().SerializeAsString());
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(again.ranks(r).node_name(), first.ranks(r).node_name()) << r;
      EXPECT_EQ(again.replicas(r).samples(), first.replicas(r).samples()) << r;
    }
    EXPECT_THAT(again.explanation(), Contains(HasSubstr("Its replicas keep their shares")));
    // Who is asked for in another order is dealt to anew; so is who comes for another.
    in_.job.mutable_strategy()->add_nodes(first.ranks(1).node_name());
    in_.job.mutable_strategy()->add_nodes(first.ranks(0).node_name());
    const Plan anew = Make();
    in_.job.mutable_strategy()->clear_nodes();
    ASSERT_THAT(anew.replicas(), SizeIs(2));
    EXPECT_GT(*subnetworks == 'u' ? anew.deal().shares(0) : anew.replicas(0).samples() / 32.0, 0.6);
    EXPECT_EQ(anew.ranks(0).node_name(), first.ranks(1).node_name());
    Nodes({MakeNode("lab", 40), MakeNode("attic", 160)});
    EXPECT_THAT(Make().explanation(), Contains(HasSubstr("placement changed: ")));
  }
}

// bf16 rounds weights that none leaves alone: what a plan had of `auto` goes on, whatever the links
// would have it be now.
TEST_F(PlannerSubnetworksTest, AResumeKeepsTheCodecThatAutoGave) {
  Nodes({MakeNode("a", 20), MakeNode("b", 20)});
  in_.job.mutable_compression()->set_gradients("auto");
  ASSERT_EQ(Make().job().compression().gradients(), "bf16");
  in_.previous = Make();
  in_.previous.mutable_job()->mutable_compression()->set_gradients("none");
  in_.from_checkpoint = true;
  in_.start_step = 100;
  EXPECT_EQ(Make().job().compression().gradients(), "none");
  // Not where a step gets far longer by it, nor where the job says otherwise.
  in_.topology.clear_links();
  JoinAll(&in_.topology, 0.01, 20);
  EXPECT_EQ(Make().job().compression().gradients(), "bf16");
  in_.topology.clear_links();
  JoinAll(&in_.topology, 100, 20);
  in_.job.mutable_compression()->set_gradients("fp16");
  EXPECT_EQ(Make().job().compression().gradients(), "fp16");
}

// What a round of many replicas over slow lines takes where the model comes together: 7/8 of it
// over the line of one.
TEST_F(PlannerSubnetworksTest, MergesAreInTheStepAndInItsDeadline) {
  in_.job.mutable_model()->set_heads(8);
  in_.job.mutable_strategy()->set_replicas(8);
  in_.job.mutable_compression()->set_gradients("none");
  std::vector<NodeInfo> nodes;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
    nodes.push_back(MakeNode(name, 20));
  Nodes(nodes, 1);
  in_.job.mutable_recipe()->set_eval_every(0);
  in_.job.mutable_checkpoint()->set_every(100000);
  const Plan seldom = Make();
  in_.job.mutable_checkpoint()->set_every(50);
  const Plan often = Make();
  const double dealt = 4.0 * DealtParameters(often.job().model(), 0, 6, {0.5});
  const double merge_s = 7.0 / 8 * dealt * 8 / 1e6;
  EXPECT_GT(often.predicted_step_s() - seldom.predicted_step_s(), 0.8 * merge_s / 50);
  for (const Plan& plan : {seldom, often}) {
    EXPECT_GT(plan.deadlines().step_ms(), 3e3 * merge_s);
    EXPECT_GT(plan.deadlines().drain_ms(), 3e3 * merge_s);
  }
  EXPECT_THAT(often.explanation(), Contains(HasSubstr("of its memory, and such an end takes ")));
}

TEST(Slices, MergesComeWithTheIntervals) {
  JobSpec job = MakeJob();
  job.mutable_strategy()->set_local_steps(50);
  const auto merged = [&](int64_t every, int64_t eval_every) {
    job.mutable_checkpoint()->set_every(every);
    job.mutable_recipe()->set_eval_every(eval_every);
    return MergedRounds(job);
  };
  EXPECT_EQ(merged(0, 0), 0);
  EXPECT_EQ(merged(100, 0), 0.5);
  EXPECT_EQ(merged(100, 200), 0.5) << "every second one for both";
  EXPECT_EQ(merged(200, 300), 0.25 + 50.0 / 300);
  EXPECT_EQ(merged(10, 0), 1);
}

// A slice has whole heads: of 4, a share of 0.3 may be 2.
TEST(Slices, AreWholeHeadsAndUnits) {
  JobSpec job = MakeJob();
  job.mutable_strategy()->set_subnetworks("units");
  const double most = SliceFor(job, 1, 0.3).share;
  EXPECT_GT(most, 1.0 / 3 * 0.5 + 2.0 / 3 * 0.3 - 0.01);
  EXPECT_NEAR(SliceFor(job, 1, 0.5).share, 0.5, 1e-9);
  const std::vector<double> shares = {0.7, 0.3};
  EXPECT_NEAR(SliceIn(job, 0, shares).share + SliceIn(job, 1, shares).share, 1, 1e-9);
  EXPECT_LE(SliceIn(job, 1, shares).share, most);
  EXPECT_TRUE(SliceIn(job, 0, shares).gathers);
  // As ranks hold them.
  Plan plan;
  *plan.mutable_job() = job;
  for (int r = 0; r < 2; ++r) {
    plan.mutable_deal()->add_shares(shares[r]);
    plan.add_replicas()->set_slice(r);
    plan.add_ranks()->set_end_layer(6);
    plan.mutable_ranks(r)->set_replica(r);
  }
  for (int r = 0; r < 2; ++r) {
    const auto held = static_cast<double>(SliceElements(job.model(), SliceOf(plan, r, 0)));
    const auto all = static_cast<double>(SliceElements(job.model(), WholeOf(plan, r)));
    EXPECT_NEAR(SliceOfRank(plan, plan.ranks(r)).share, held / all, 1e-9);
  }
}

TEST(Slices, SharesAreFilledByMemoryFirst) {
  JobSpec job = MakeJob(24, 1024);
  job.mutable_model()->set_heads(16);
  job.mutable_strategy()->set_subnetworks("units");
  const NodeInfo small = MakeNode("small", 100, kGiB), large = MakeNode("large", 10, 16 * kGiB);
  const std::vector<double> shares =
      ShareSlices(job, {{&large}, {&small}}, {24}).value_or(std::vector<double>());
  ASSERT_THAT(shares, SizeIs(2));
  EXPECT_NEAR(shares[0] + shares[1], 1, 1e-12);
  EXPECT_GT(shares[0], 0.5) << "the fast one has no memory for more";
  const auto refused = ShareSlices(job, {{&small}, {&small}}, {24});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("small "));
}

// What they agree with is in the memory of the host, whatever computes.
TEST(Slices, ACardHoldsTheStagesAlone) {
  JobSpec job = MakeJob(24, 1024);
  job.mutable_model()->set_heads(16);
  job.mutable_strategy()->set_subnetworks("units");
  NodeInfo card = MakeNode("card", 100, 16 * kGiB);
  card.set_device_memory_bytes(5 * kGiB);
  const NodeInfo cpu = MakeNode("cpu", 100, 5 * kGiB);
  EXPECT_EQ(ShareSlices(job, {{&cpu}, {&cpu}}, {24}).status().code(),
            absl::StatusCode::kResourceExhausted);
  const auto shared = ShareSlices(job, {{&card}, {&card}}, {24});
  EXPECT_TRUE(shared.ok()) << shared.status();
  card.set_memory_bytes(2 * kGiB);
  EXPECT_EQ(ShareSlices(job, {{&card}, {&card}}, {24}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace isthmus::coordinator
