#include "coordinator/planner/layout.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_join.h"
#include "coordinator/planner/orders.h"
#include "coordinator/planner/reduction_cost.h"
#include "coordinator/planner/rough_score.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The same values on every machine: distributions of the library differ.
class Draws {
 public:
  explicit Draws(uint32_t seed) : engine_(seed) {}
  double Uniform() { return engine_() / 4294967296.0; }
  int Below(int n) { return static_cast<int>(n * Uniform()); }

 private:
  std::mt19937 engine_;
};

double Ends(const std::vector<int>& samples, int micro, const std::vector<double>& micro_s,
            const std::vector<double>& extra_s) {
  double last = 0;
  for (size_t r = 0; r < samples.size(); ++r)
    last = std::max(last, extra_s[r] + micro_s[r] * samples[r] / micro);
  return last;
}

TEST(DealSamples, FasterReplicasTakeMore) {
  EXPECT_THAT(DealSamples(32, 4, {1, 1}, {0, 0}), ElementsAre(16, 16));
  EXPECT_THAT(DealSamples(32, 4, {1, 3}, {0, 0}), ElementsAre(24, 8));
  EXPECT_THAT(DealSamples(32, 4, {1, 1}, {0, 4}), ElementsAre(24, 8));
  // A rest that is no whole micro-batch, and fewer micro-batches than replicas.
  EXPECT_THAT(DealSamples(10, 4, {1, 1}, {0, 0}), ElementsAre(6, 4));
  EXPECT_THAT(DealSamples(5, 4, {1, 1, 1}, {0, 0, 0}), ElementsAre(2, 2, 1));
}

TEST(DealSamples, NoOtherDealOfWholeMicroBatchesEndsSooner) {
  Draws rng(3);
  for (int round = 0; round < 200; ++round) {
    const int replicas = 2 + rng.Below(2);
    const int units = replicas + rng.Below(6);
    std::vector<double> micro_s, extra_s;
    for (int r = 0; r < replicas; ++r) {
      micro_s.push_back(0.1 + rng.Uniform());
      extra_s.push_back(rng.Uniform());
    }
    const std::vector<int> dealt = DealSamples(units, 1, micro_s, extra_s);
    ASSERT_EQ(std::accumulate(dealt.begin(), dealt.end(), 0), units);
    EXPECT_THAT(dealt, Each(Ge(1)));
    double best = 1e9;
    for (int a = 1; a < units; ++a) {
      for (int b = replicas == 3 ? 1 : 0; a + b <= units; ++b) {
        std::vector<int> other = {a, units - a - (replicas == 3 ? b : 0)};
        if (replicas == 3) other.push_back(b);
        if (replicas == 2 && b > 0) break;
        if (*std::min_element(other.begin(), other.end()) < 1) continue;
        best = std::min(best, Ends(other, 1, micro_s, extra_s));
      }
    }
    EXPECT_LE(Ends(dealt, 1, micro_s, extra_s), best * (1 + 1e-9))
        << absl::StrJoin(dealt, ", ") << ", round " << round;
  }
}

class LayoutTest : public ::testing::Test {
 protected:
  void Nodes(const std::vector<double>& gflops, double mbit = 100, double round_trip_ms = 20) {
    topology_.Clear();
    for (size_t i = 0; i < gflops.size(); ++i)
      *topology_.add_nodes() = MakeNode(std::string(1, static_cast<char>('a' + i)), gflops[i]);
    JoinAll(&topology_, mbit, round_trip_ms);
  }
  // "ab cd": two replicas of two stages.
  NodeChains Chains(const std::string& text) const {
    NodeChains chains(1);
    for (char c : text) {
      if (c == ' ') {
        chains.emplace_back();
      } else {
        chains.back().push_back(&topology_.nodes(c - 'a'));
      }
    }
    return chains;
  }
  absl::StatusOr<Layout> Price(const std::string& chains, std::vector<int> layers = {}) {
    return PriceLayout(job_, Chains(chains), layers, LinkIndex(topology_));
  }

  Topology topology_;
  JobSpec job_ = MakeJob();
};

TEST_F(LayoutTest, TwoChainsShareACutAndABatch) {
  Nodes({20, 20, 20, 20});
  const absl::StatusOr<Layout> two = Price("ab cd"), one = Price("ab");
  ASSERT_TRUE(two.ok() && one.ok()) << two.status();
  EXPECT_THAT(two->samples, ElementsAre(16, 16));
  EXPECT_EQ(two->chains[0].layers, two->chains[1].layers);
  EXPECT_LT(two->pipeline_s, 0.65 * one->pipeline_s);
  EXPECT_GT(two->sync_s, one->sync_s);
  EXPECT_THAT(two->pairs, SizeIs(6)) << "both ends of both replicas, and the two of each stage";
  EXPECT_EQ(NamesOf(*two), "a, b | c, d");
}

TEST_F(LayoutTest, TheSlowHostTakesASmallShareAndTheCutFitsBoth) {
  Nodes({60, 20});
  const absl::StatusOr<Layout> layout = Price("a b");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(layout->samples, ElementsAre(24, 8));
  EXPECT_THAT(layout->shares_why, HasSubstr("of the 32 samples of a step they take 24 ("));
  EXPECT_NEAR(layout->chains[0].pipeline_s, layout->chains[1].pipeline_s,
              0.01 * layout->pipeline_s);
}

TEST_F(LayoutTest, WhatReplicasExchangeGoesByTheLineOfADaemon) {
  job_.mutable_compression()->set_gradients("bf16");
  Nodes({20, 20, 20, 20}, 10);
  const double two = Price("a b")->reduce_s, four = Price("a b c d")->reduce_s;
  // Of P bytes a daemon sends (n - 1) / n twice: 1.0 P with two, 1.5 P with four.
  EXPECT_NEAR(four / two, 1.5, 0.05);
  Nodes({20, 20, 20, 20}, 1);
  // Buckets hide as much as the pass takes, of ten times the seconds.
  EXPECT_NEAR(Price("a b")->reduce_s / two, 10, 0.6);
}

TEST_F(LayoutTest, GradientsAreQuantisedWhereTheLinkIsSlow) {
  Nodes({20, 20}, 10);
  EXPECT_EQ(FormatCodec(Price("a b")->gradients), "quant(4, token, symmetric)");
  job_.mutable_compression()->set_min_bits(8);
  EXPECT_EQ(FormatCodec(Price("a b")->gradients), "quant(8, token, symmetric)");
  EXPECT_THAT(Price("a b")->gradients_why, HasSubstr("with bf16, "));
  Nodes({1, 1}, 100000, 1);
  EXPECT_EQ(FormatCodec(Price("a b")->gradients), "bf16");
  job_.mutable_compression()->set_gradients("ef(topk(0.01))");
  EXPECT_EQ(FormatCodec(Price("a b")->gradients), "ef(topk(0.01))");
  EXPECT_THAT(Price("a b")->gradients_why, IsEmpty());
}

TEST_F(LayoutTest, RefusesWhatCantBeInWords) {
  Nodes({20, 20, 20, 20});
  for (LinkMeasurement& m : *topology_.mutable_links()) {
    if (m.from_id() == "id-a" && m.to_id() == "id-c") m.set_error("connection refused");
    if (m.from_id() == "id-c" && m.to_id() == "id-a") m.set_error("connection refused");
  }
  EXPECT_EQ(Price("ab cd").status().message(),
            "link: a -> c (replicas agree over it): connection refused");
  job_.mutable_recipe()->set_global_batch(4);
  job_.mutable_recipe()->set_micro_batch(1);
  EXPECT_TRUE(Price("b d").ok());
  EXPECT_THAT(std::string(PriceLayout(job_,
                                      {Chains("a")[0], Chains("b")[0], Chains("c")[0],
                                       Chains("d")[0], Chains("a")[0]},
                                      {}, LinkIndex(topology_))
                              .status()
                              .message()),
              HasSubstr("5 replicas, and a batch has 4 samples (recipe.global_batch)"));
}

TEST_F(LayoutTest, MemoryForAgreeingIsCounted) {
  Nodes({20, 20});
  const absl::StatusOr<Layout> alone = Price("a"), both = Price("a b");
  ASSERT_TRUE(alone.ok() && both.ok());
  job_.mutable_compression()->set_gradients("bf16");
  EXPECT_EQ(ReductionBytes(job_, 100, 2), 4 * 300);
  job_.mutable_compression()->set_gradients("ef(quant(4))");
  EXPECT_EQ(ReductionBytes(job_, 100, 2), 4 * 450);
  job_.mutable_strategy()->set_local_steps(5);
  EXPECT_EQ(ReductionBytes(job_, 100, 2), 4 * 750);
  job_.mutable_strategy()->set_local_steps(1);
  const int64_t embedding = 4 * job_.model().vocabulary() * job_.model().hidden();
  for (const auto& [codec, bytes] : {std::pair{"auto", int64_t{0}},
                                     {"quant(4)", 0},
                                     {"ef(quant(4))", embedding},
                                     {"lowrank(4)", embedding}}) {
    job_.mutable_compression()->set_tied(codec);
    EXPECT_EQ(TiedResidualBytes(job_), bytes) << codec;
  }
  job_.mutable_compression()->set_tied("auto");
  job_.mutable_recipe()->set_optimizer("quantized_adam");
  EXPECT_EQ(TiedResidualBytes(job_), embedding) << "auto takes ef";
  job_.mutable_recipe()->set_optimizer("adamw");
  EXPECT_GT(both->chains[0].bytes[0], alone->chains[0].bytes[0]);
  for (NodeInfo& node : *topology_.mutable_nodes())
    node.set_memory_bytes(alone->chains[0].bytes[0] + 1);
  EXPECT_TRUE(Price("a").ok());
  EXPECT_THAT(std::string(Price("a b").status().message()),
              HasSubstr("to agree with 1 other replica, stage 0 needs"));
}

// Every way to make two chains of two out of the daemons, against what is found.
TEST(PromisingChains, FewDaemonsGetTheBestOfAll) {
  Draws rng(11);
  for (int round = 0; round < 30; ++round) {
    Topology topology;
    for (char c : {'a', 'b', 'c', 'd', 'e'})
      *topology.add_nodes() = MakeNode(std::string(1, c), 5 + 50 * rng.Uniform());
    for (int i = 0; i < 5; ++i) {
      for (int j = i + 1; j < 5; ++j)
        Join(&topology, topology.nodes(i).name(), topology.nodes(j).name(), 5 + 200 * rng.Uniform(),
             5 + 60 * rng.Uniform());
    }
    std::vector<const NodeInfo*> nodes;
    for (const NodeInfo& node : topology.nodes()) nodes.push_back(&node);
    const RoughScore rough(MakeJob(), nodes, LinkIndex(topology));
    const std::vector<isthmus::coordinator::Chains> found = PromisingChains(rough, 2, 2);
    ASSERT_FALSE(found.empty());
    std::vector<int> order = {0, 1, 2, 3, 4};
    double best = 1e18;
    do {
      best = std::min(
          best, rough.Of(isthmus::coordinator::Chains{{order[0], order[1]}, {order[2], order[3]}}));
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_LE(rough.Of(found[0]), best * (1 + 1e-9)) << "round " << round;
  }
}

// Two sites of six daemons each, fast inside and slow between: with too many ways to try them all,
// the swaps find chains that stay in their site.
TEST(PromisingChains, ManyDaemonsFindTheirSites) {
  Topology topology;
  for (char c = 'a'; c < 'm'; ++c) *topology.add_nodes() = MakeNode(std::string(1, c), 20);
  for (int i = 0; i < 12; ++i) {
    for (int j = i + 1; j < 12; ++j) {
      const bool same = i % 2 == j % 2;
      Join(&topology, topology.nodes(i).name(), topology.nodes(j).name(), same ? 1000 : 20,
           same ? 1 : 60);
    }
  }
  std::vector<const NodeInfo*> nodes;
  for (const NodeInfo& node : topology.nodes()) nodes.push_back(&node);
  const RoughScore rough(MakeJob(12, 512), nodes, LinkIndex(topology));
  const std::vector<isthmus::coordinator::Chains> found = PromisingChains(rough, 2, 6);
  ASSERT_FALSE(found.empty());
  const isthmus::coordinator::Chains sites = {{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}};
  EXPECT_LE(rough.Of(found[0]), 1.05 * rough.Of(sites));
}

TEST(PromisingChains, AvoidWhatCantBe) {
  Topology topology;
  for (char c : {'a', 'b', 'c', 'd', 'e'}) *topology.add_nodes() = MakeNode(std::string(1, c), 20);
  JoinAll(&topology, 100, 20);
  topology.mutable_nodes(0)->clear_data_files();  // it may be in the middle alone
  std::vector<const NodeInfo*> nodes;
  for (const NodeInfo& node : topology.nodes()) nodes.push_back(&node);
  const RoughScore rough(MakeJob(), nodes, LinkIndex(topology));
  for (const auto& chains : PromisingChains(rough, 2, 2)) {
    for (const Order& chain : chains) EXPECT_THAT(chain, Each(Ge(1)));
  }
  EXPECT_THAT(PromisingChains(rough, 3, 2), IsEmpty()) << "six daemons are wanted";
  EXPECT_THAT(PromisingChains(rough, 5, 1), IsEmpty()) << "one has no data";
}

}  // namespace
}  // namespace isthmus::coordinator
