#include "coordinator/planner/search.h"

#include <cmath>

#include "coordinator/planner/orders.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/pricing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct World {
  explicit World(int n, double mbit = 100) {
    for (int i = 0; i < n; ++i) *topology.add_nodes() = MakeNode(std::string(1, 'a' + i), 10);
    JoinAll(&topology, mbit, 20);
    for (const NodeInfo& node : topology.nodes()) nodes.push_back(&node);
  }
  Topology topology;
  std::vector<const NodeInfo*> nodes;
};

TEST(Search, FewOrdersAreAllComparedAndTheBestKept) {
  World w(4);
  const LinkIndex links(w.topology);
  EXPECT_THAT(PromisingOrders(RoughScore(MakeJob(), w.nodes, links), 3), SizeIs(kPricedOrders));
  EXPECT_THAT(PromisingOrders(RoughScore(MakeJob(), w.nodes, links), 1), SizeIs(4));
}

TEST(Search, GreedyFindsAChainOfGoodLinksAmongMany) {
  // Twelve daemons on a ring of fast links, everything else slow: too many orders to try them all.
  World w(12, 1);
  for (LinkMeasurement& m : *w.topology.mutable_links()) {
    const int a = m.from_id().back() - 'a', b = m.to_id().back() - 'a';
    if ((a + 1) % 12 == b || (b + 1) % 12 == a) m.set_rate_bits_per_s(1e9);
  }
  const LinkIndex links(w.topology);
  const auto orders = PromisingOrders(RoughScore(MakeJob(12), w.nodes, links), 12);
  ASSERT_FALSE(orders.empty());
  for (size_t s = 1; s < orders[0].size(); ++s) {
    const int step = std::abs(orders[0][s] - orders[0][s - 1]);
    EXPECT_TRUE(step == 1 || step == 11) << s;
  }
}

// Scripts that try again later were told that it is refused for good.
TEST(Search, WhatComesByItselfIsNotNowAndNoRefusal) {
  PlannerInput in;
  in.job_id = "bible-1";
  in.generation = 1;
  in.topology = World(1).topology;
  in.absent = {{"id-b", "b", "b is lost, last heard 2 s ago", true},
               {"id-c", "c", "c left in good order", false}};
  const auto refusal = [&] { return MakePlan(in).status(); };
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(2);
  EXPECT_EQ(refusal().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refusal().message(), HasSubstr("b is lost, last heard 2 s ago; c left in good"));
  in.job.mutable_strategy()->set_stages(3);
  EXPECT_EQ(refusal().code(), absl::StatusCode::kResourceExhausted) << "b is not enough";
  const auto named = [&](const std::string& name) {
    in.job = MakeJob();
    in.job.mutable_strategy()->add_nodes(name);
    EXPECT_THAT(refusal().message(), HasSubstr("names '" + name + "', which is not free"));
    return refusal().code();
  };
  EXPECT_EQ(named("b"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(named("id-b"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(named("c"), absl::StatusCode::kResourceExhausted) << "somebody has to start it";
  EXPECT_EQ(named("d"), absl::StatusCode::kResourceExhausted);
}

TEST(Search, ItIsEnoughThatOneOfTwoCanDial) {
  World w(2);
  for (LinkMeasurement& m : *w.topology.mutable_links())
    if (m.from_id() == "id-a") m.set_error("no connection");
  PlannerInput in;
  in.job_id = "bible-1";
  in.generation = 1;
  in.job = MakeJob();
  in.job.mutable_strategy()->set_stages(2);
  for (const char* name : {"a", "b"}) in.job.mutable_strategy()->add_nodes(name);
  in.topology = w.topology;
  const absl::StatusOr<PlannedJob> planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  for (const LinkPlan& link : planned->plan.links()) EXPECT_TRUE(link.upper_dials()) << link.id();
  EXPECT_THAT(planned->plan.explanation(),
              Contains("link b0: b dials a, which can't dial it: no connection"));
  std::swap(*in.job.mutable_strategy()->mutable_nodes(0),
            *in.job.mutable_strategy()->mutable_nodes(1));
  const Plan other = MakePlan(in).value().plan;
  for (const LinkPlan& link : other.links()) EXPECT_FALSE(link.upper_dials()) << link.id();

  for (LinkMeasurement& m : *in.topology.mutable_links()) m.set_error("no connection");
  EXPECT_THAT(std::string(MakePlan(in).status().message()), HasSubstr("no connection"))
      << "a rate is of no use where neither can";
}

TEST(Search, NoLinksNoOrder) {
  World w(3);
  w.topology.clear_links();
  const LinkIndex links(w.topology);
  EXPECT_THAT(PromisingOrders(RoughScore(MakeJob(), w.nodes, links), 2), IsEmpty());
  EXPECT_EQ(links.Get("id-a", "id-b").why_not, "not measured yet");
}

TEST(Placement, AStepIsPipelineSyncAndOptimiser) {
  World w(2);
  const LinkIndex links(w.topology);
  const Placement p = PricePlacement(MakeJob(), w.nodes, {}, links).value();
  EXPECT_DOUBLE_EQ(p.step_s, p.pipeline_s + p.sync_s + p.optimizer_s);
  EXPECT_GT(p.pipeline_s, 8 * p.slowest_s);
  EXPECT_GT(p.sync_s, 0.02) << "a vote is a round trip";
  const Placement one = PricePlacement(MakeJob(), {w.nodes[0]}, {}, links).value();
  EXPECT_EQ(one.sync_s, 0);
  EXPECT_DOUBLE_EQ(one.pipeline_s, 8 * one.slowest_s);
}

TEST(Placement, LargeBuffersOnASmallDiskAreRefused) {
  World w(2);
  for (NodeInfo& n : *w.topology.mutable_nodes()) {
    n.set_memory_bytes(int64_t{500} << 20);
    n.set_disk_bytes(1 << 20);
  }
  JobSpec job = MakeJob();
  job.mutable_recipe()->set_steps(100000);
  job.mutable_compression()->set_forward("delta(quant(3))");
  const auto p = PricePlacement(job, w.nodes, {}, LinkIndex(w.topology));
  EXPECT_EQ(p.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(p.status().message()), ::testing::HasSubstr("1.00 MiB of disk"));
}

}  // namespace
}  // namespace isthmus::coordinator
