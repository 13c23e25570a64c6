#include "coordinator/planner/exchange_time.h"

#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

constexpr double kBytes = 1e6;

// Replicas of one stage, every two joined at `rate`.
Layout Replicas(const std::vector<double>& slices, double rate_bits_per_s) {
  Layout layout;
  const int n = static_cast<int>(slices.size());
  layout.slices = slices;
  layout.chains.resize(slices.size());
  for (Placement& p : layout.chains) p.nodes = {nullptr};
  for (int a = 0; a < n; ++a) {
    for (int b = a + 1; b < n; ++b) {
      GroupPair pair;
      pair.lower = a;
      pair.upper = b;
      pair.up.rate_bits_per_s = pair.down.rate_bits_per_s = rate_bits_per_s;
      layout.pairs.push_back(pair);
    }
  }
  return layout;
}

double Slices(const Layout& layout, bool merged) {
  std::vector<int> ranks;
  for (int r = 0; r < layout.replicas(); ++r) ranks.push_back(r);
  ExchangeTime time(layout);
  time.AddSlices(ranks, kBytes, merged);
  return time.Seconds();
}

TEST(ExchangeTime, AReductionSendsEachOtherRankItsPart) {
  const Layout layout = Replicas({0.25, 0.25, 0.25, 0.25}, 8e6);
  ExchangeTime time(layout);
  time.AddReduction({0, 1, 2, 3}, kBytes);
  EXPECT_NEAR(time.Seconds(), 0.75, 1e-12) << "three quarters leave each rank over its line";
}

TEST(ExchangeTime, SlicesThatChangeHandsAreWhatChanceMakesIt) {
  EXPECT_NEAR(Slices(Replicas({0.5, 0.5}, 8e6), false), 0.25, 1e-12);
  EXPECT_NEAR(Slices(Replicas({0.75, 0.25}, 8e6), false), 0.1875, 1e-12);
}

// The end of a round at which the model comes together: all but the first replica's own, over its
// line.
TEST(ExchangeTime, AMergeBringsAllToTheFirstReplica) {
  EXPECT_NEAR(Slices(Replicas({0.5, 0.5}, 8e6), true), 0.5, 1e-12);
  const std::vector<double> eight(8, 1.0 / 8);
  EXPECT_NEAR(Slices(Replicas(eight, 8e6), true), 7.0 / 8, 1e-12);
  EXPECT_NEAR(Slices(Replicas(eight, 8e6), false), 7.0 / 64, 1e-12);
}

}  // namespace
}  // namespace isthmus::coordinator
