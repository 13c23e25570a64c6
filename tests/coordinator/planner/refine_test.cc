#include "coordinator/planner/refine.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::SizeIs;

struct World {
  World() {
    for (const auto& [name, gflops] :
         std::vector<std::pair<std::string, double>>{{"a", 20}, {"b", 100}, {"c", 60}, {"d", 100}})
      *topology.add_nodes() = MakeNode(name, gflops);
    JoinAll(&topology, 500, 10);
    for (const NodeInfo& node : topology.nodes()) nodes.push_back(&node);
  }
  // Of these daemons, priced quickly.
  Layout Start(const std::vector<int>& chain, const std::vector<int>& layers = {}) const {
    NodeChains chains(1);
    for (const int i : chain) chains[0].push_back(nodes[i]);
    return PriceLayout(job, chains, layers, LinkIndex(topology), {}, Effort::kQuick).value();
  }
  Refined Improve(Layout start, bool cut_given = false) const {
    return Refine(job, nodes, LinkIndex(topology), {}, cut_given, std::move(start));
  }
  JobSpec job = MakeJob(12);
  Topology topology;
  std::vector<const NodeInfo*> nodes;
};

std::vector<std::string> Names(const Layout& layout) {
  std::vector<std::string> names;
  for (const NodeInfo* node : layout.nodes()) names.push_back(node->name());
  return names;
}

TEST(Refine, TakesIdleDaemonsThatAreFaster) {
  const World w;
  const Layout start = w.Start({0, 2});
  const Refined refined = w.Improve(start);
  ASSERT_THAT(refined.layouts, Not(SizeIs(0)));
  EXPECT_THAT(Names(refined.layouts[0]), ::testing::UnorderedElementsAre("b", "d"));
  EXPECT_LT(refined.layouts[0].cost_s, start.cost_s);
  EXPECT_LE(refined.priced, kMostRefinements + 1);
  EXPECT_LE(refined.layouts.size(), kCloseLayouts + 2);
  for (const Layout& layout : refined.layouts)
    EXPECT_LE(layout.cost_s, kCloseCut * refined.layouts[0].cost_s);
}

TEST(Refine, MovesLayersUnlessTheCutIsGiven) {
  const World w;
  const Layout start = w.Start({1, 3}, {2, 10});
  const Layout better = w.Improve(start).layouts[0];
  EXPECT_LT(better.cost_s, start.cost_s);
  EXPECT_THAT(w.Improve(start, true).layouts[0].chain().layers, ElementsAre(2, 10));
}

TEST(Refine, WhatIsTheBestStays) {
  const World w;
  const Layout best = w.Improve(w.Start({1, 3})).layouts[0];
  const Layout again = w.Improve(best).layouts[0];
  EXPECT_EQ(Names(again), Names(best));
  EXPECT_EQ(again.chain().layers, best.chain().layers);
}

TEST(Refine, LongStepsGetFewerPrices) {
  World w;
  w.job.mutable_recipe()->set_micro_batch(1);
  w.job.mutable_recipe()->set_global_batch(4096);
  const Refined refined = w.Improve(w.Start({0, 2}));
  EXPECT_LE(refined.priced, kMostRefinedPasses / (2 * 4096 * 2) + 1) << "and an equal cut";
  EXPECT_LE(refined.layouts.size(), 2u);
}

}  // namespace
}  // namespace isthmus::coordinator
