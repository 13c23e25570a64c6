#include "worker/sync/vote.h"

#include <gtest/gtest.h>

#include <limits>

namespace isthmus::worker {
namespace {

GradientNorm Norm(double sum_squares, bool finite = true) {
  GradientNorm norm;
  norm.sum_squares = sum_squares;
  norm.finite = finite;
  return norm;
}

TEST(CombineVote, NormsAddUpAndWishesAreOrEd) {
  StepRequests nothing, stop;
  stop.stop = true;
  const Vote top = CombineVote(nullptr, Norm(4), nothing);
  EXPECT_TRUE(top.finite());
  EXPECT_EQ(top.norm_sq(), 4);
  const Vote middle = CombineVote(&top, Norm(5), stop);
  EXPECT_EQ(middle.norm_sq(), 9);
  EXPECT_TRUE(middle.stop());
  const Vote bottom = CombineVote(&middle, Norm(1), nothing);
  EXPECT_EQ(bottom.norm_sq(), 10);
  EXPECT_TRUE(bottom.stop());
  EXPECT_FALSE(bottom.checkpoint());
}

TEST(CombineVote, OneNonFiniteStageIsEnough) {
  StepRequests good, bad;
  bad.finite = false;
  const Vote top = CombineVote(nullptr, Norm(1), bad);
  EXPECT_FALSE(CombineVote(&top, Norm(1), good).finite());
  EXPECT_FALSE(CombineVote(nullptr, Norm(1, false), good).finite());
  EXPECT_FALSE(CombineVote(nullptr, Norm(std::numeric_limits<double>::infinity()), good).finite());
  EXPECT_FALSE(CombineVote(nullptr, Norm(std::numeric_limits<double>::quiet_NaN()), good).finite());
}

TEST(Decide, CommitsWhatIsFinite) {
  Vote all;
  EXPECT_FALSE(Decide(all, false, false).commit());
  all.set_finite(true);
  EXPECT_TRUE(Decide(all, false, false).commit());
}

TEST(Decide, CheckpointsWhenDueUnlessBusyAndAlwaysAtTheEnd) {
  Vote all;
  all.set_finite(true);
  EXPECT_FALSE(Decide(all, false, false).checkpoint());
  EXPECT_TRUE(Decide(all, true, false).checkpoint());
  EXPECT_TRUE(Decide(all, false, true).checkpoint());
  all.set_busy(true);
  EXPECT_FALSE(Decide(all, true, false).checkpoint());
  EXPECT_TRUE(Decide(all, true, true).checkpoint());
  all.set_stop(true);
  EXPECT_TRUE(Decide(all, false, false).checkpoint());
  all.set_stop(false);
  all.set_busy(false);
  all.set_checkpoint(true);
  EXPECT_TRUE(Decide(all, false, false).checkpoint());
}

TEST(DecideLocal, WaitsForWhoeverHoldsItAndForNobodysStore) {
  StepRequests nothing, hold;
  hold.hold = true;
  Vote all = CombineVote(nullptr, Norm(1), nothing);
  EXPECT_TRUE(DecideLocal(Decide(all, false, false), true).local());
  EXPECT_FALSE(DecideLocal(Decide(all, false, false), false).local());
  EXPECT_FALSE(DecideLocal(Decide(all, true, false), true).local()) << "it is stored anyway";
  EXPECT_FALSE(DecideLocal(Decide(all, false, true), true).local());
  all.set_busy(true);
  EXPECT_TRUE(DecideLocal(Decide(all, true, false), true).local()) << "the stored one is owed";
  all = CombineVote(&all, Norm(1), hold);
  EXPECT_FALSE(DecideLocal(Decide(all, false, false), true).local());
  all.set_hold(false);
  EXPECT_FALSE(DrainFirst(DecideLocal(Decide(all, false, false), true)).local())
      << "passes of the next step are under way";
}

TEST(PatienceWithStore, OnlyTheStepWhereACheckpointFallsDueWaits) {
  const absl::Duration timeout = absl::Seconds(40);
  EXPECT_EQ(PatienceWithStore(true, false, timeout), absl::Seconds(10));
  EXPECT_EQ(PatienceWithStore(false, false, timeout), absl::ZeroDuration());
  EXPECT_EQ(PatienceWithStore(false, true, timeout), absl::ZeroDuration());
  EXPECT_EQ(PatienceWithStore(true, true, timeout), absl::ZeroDuration()) << "the store is behind";
}

}  // namespace
}  // namespace isthmus::worker
