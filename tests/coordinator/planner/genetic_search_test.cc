#include "coordinator/planner/genetic_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "coordinator/planner/random_plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

struct World {
  explicit World(int n, double mbit = 100) {
    for (int i = 0; i < n; ++i) *topology.add_nodes() = MakeNode(std::string(1, 'a' + i), 10);
    JoinAll(&topology, mbit, 20);
    for (const NodeInfo& node : topology.nodes()) nodes.push_back(&node);
  }
  void SetRate(char a, char b, double mbit) {
    for (LinkMeasurement& m : *topology.mutable_links()) {
      if ((m.from_id().back() == a && m.to_id().back() == b) ||
          (m.from_id().back() == b && m.to_id().back() == a))
        m.set_rate_bits_per_s(mbit * 1e6);
    }
  }
  Topology topology;
  std::vector<const NodeInfo*> nodes;
};

JobSpec Plain() {
  JobSpec job = MakeJob(4);
  job.mutable_compression()->set_forward("none");
  job.mutable_compression()->set_backward("none");
  job.mutable_compression()->set_gradients("none");
  return job;
}

TEST(CommunicationCost, AnOpenTourAndTheSlowestGroup) {
  World w(4);
  w.SetRate('a', 'b', 50);
  const LinkIndex links(w.topology);
  const JobSpec job = Plain();
  const double micro = 8 * WireBytes(CodecSpec(), {4, 128, 256}, true);
  const CommunicationCost chain(job, w.nodes, links, 1, 3);
  EXPECT_NEAR(chain.Of({0, 1, 2, 3}), 2 * (0.01 + micro / 50e6) + 2 * (0.01 + micro / 100e6), 1e-9)
      << "from the last stage to the first nothing is counted";
  EXPECT_NEAR(chain.Of({0, 2, 3, 1}), 4 * (0.01 + micro / 100e6), 1e-9) << "b is idle";
  const CommunicationCost pairs(job, w.nodes, links, 2, 2);
  EXPECT_GT(pairs.Of({0, 1, 2, 3}), pairs.Of({0, 2, 1, 3})) << "a and b share no stage";
}

TEST(CommunicationCost, WithoutALinkAnOrderIsImpossible) {
  World w(2);
  w.topology.clear_links();
  const LinkIndex links(w.topology);
  EXPECT_GE(CommunicationCost(Plain(), w.nodes, links, 1, 2).Of({0, 1}),
            CommunicationCost::kImpossible);
}

// A tour along neighbours is the shortest: 12 places on a line.
TEST(GeneticSearch, FindsTheShortestTour) {
  const auto length = [](const Order& order) {
    double sum = 0;
    for (size_t i = 1; i < order.size(); ++i)
      sum += std::abs(7 * order[i] % 12 - 7 * order[i - 1] % 12);
    return sum;
  };
  const GeneticResult found = SearchGenetically(12, 12, length, 1);
  ASSERT_FALSE(found.orders.empty());
  EXPECT_EQ(length(found.orders[0]), 11);
  EXPECT_LE(found.evaluated, kMostEvaluations);
  for (size_t i = 1; i < found.orders.size(); ++i)
    EXPECT_LE(length(found.orders[i - 1]), length(found.orders[i])) << "the best first";
  EXPECT_EQ(SearchGenetically(12, 12, length, 1).orders, found.orders) << "the same again";
}

TEST(GeneticSearch, ChoosesAmongIdleOnesAndKeepsEveryOne) {
  const auto cost = [](const Order& order) { return 1.0 * (order[0] + order[1]); };
  const GeneticResult found = SearchGenetically(9, 2, cost, 3);
  EXPECT_EQ(cost(found.orders[0]), 1);
  for (Order order : found.orders) {
    std::sort(order.begin(), order.end());
    Order all(9);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
  EXPECT_EQ(SearchGenetically(
                1, 1, [](const Order&) { return 0.0; }, 1)
                .orders.size(),
            1u);
}

TEST(GeneticSearch, EndsAtItsBound) {
  int64_t calls = 0;
  const auto cost = [&](const Order&) {
    return -1.0 * static_cast<double>(++calls);
  };  // always better
  EXPECT_LE(SearchGenetically(64, 64, cost, 1).evaluated, kMostEvaluations + kPopulation);
}

constexpr int kPlans = 150;

TEST(RandomPlans, TheBestKeepsToTheJob) {
  World w(5);
  const LinkIndex links(w.topology);
  JobSpec job = MakeJob(7);
  const RandomPlans any = BestRandomPlan(job, w.nodes, links, {}, kPlans, 1);
  ASSERT_TRUE(any.best.ok()) << any.best.status();
  EXPECT_EQ(any.priced, kPlans);
  EXPECT_EQ(BestRandomPlan(job, w.nodes, links, {}, kPlans, 1).best->cost_s, any.best->cost_s)
      << "deterministic";
  job.mutable_strategy()->set_stages(3);
  const RandomPlans three = BestRandomPlan(job, w.nodes, links, {}, kPlans, 1);
  ASSERT_TRUE(three.best.ok()) << three.best.status();
  EXPECT_EQ(three.best->stages(), 3);
  EXPECT_GE(three.best->cost_s, any.best->cost_s * (1 - 1e-9));
  job.mutable_strategy()->mutable_layers_per_stage()->Add(5);
  job.mutable_strategy()->mutable_layers_per_stage()->Add(1);
  job.mutable_strategy()->mutable_layers_per_stage()->Add(1);
  EXPECT_EQ(BestRandomPlan(job, w.nodes, links, {}, kPlans, 1).best->chain().layers,
            std::vector<int>({5, 1, 1}));
  job = MakeJob(7);
  job.mutable_strategy()->set_stages(2);
  job.mutable_strategy()->set_replicas(2);
  EXPECT_EQ(BestRandomPlan(job, w.nodes, links, {}, kPlans, 1).best->replicas(), 2);
}

TEST(RandomPlans, NoneIsSaidWithTheReason) {
  World w(3);
  w.topology.clear_links();
  const LinkIndex links(w.topology);
  JobSpec job = MakeJob(6);
  job.mutable_strategy()->set_stages(2);
  const RandomPlans none = BestRandomPlan(job, w.nodes, links, {}, kPlans, 1);
  EXPECT_EQ(none.priced, 0);
  EXPECT_THAT(std::string(none.best.status().message()), HasSubstr("not measured yet"));
  job.mutable_strategy()->set_stages(4);
  EXPECT_EQ(BestRandomPlan(job, w.nodes, links, {}, kPlans, 1).best.status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace isthmus::coordinator
