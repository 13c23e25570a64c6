// What the frames of a running job show of its links.
#include "coordinator/core/link_watch.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kRoundTrip = 0.02;
constexpr double kFrameBytes = 1e6;

// Stages on a and b; the frames of the tests go up, from rank 0 to rank 1.
Plan TwoStages() {
  Plan plan;
  for (const char* name : {"a", "b"}) plan.add_ranks()->set_node_id(name);
  LinkPlan* link = plan.add_links();
  link->set_id("b0");
  link->set_upper(1);
  link->set_round_trip_s(kRoundTrip);
  return plan;
}

class LinkWatchTest : public ::testing::Test {
 protected:
  // A step of `step_s` in which rank 1 waited for `frames` trains that came at `mbit`.
  std::vector<LinkLook> Step(double mbit, double step_s = 1.5, int frames = 4,
                             double frame_bytes = kFrameBytes) {
    StepRecord record;
    record.set_rank(1);
    DirectionBytes* d = record.add_directions();  // its outgoing one, which is downwards
    d->set_link_id("b0");
    d->set_train_frames_in(frames);
    d->set_train_bytes_in(static_cast<int64_t>(frames * frame_bytes));
    d->set_train_s_in(frames * 8 * frame_bytes / (mbit * 1e6));
    return watch_.OnStep({record}, step_s);
  }
  // What the looks at the way up say against 100 Mbit/s; 0: nothing.
  static double Mbit(const std::vector<LinkLook>& looks, double believed_mbit = 100) {
    for (const LinkLook& look : looks) {
      if (look.from_id == "a") return CarriedRate(look, believed_mbit * 1e6).value_or(0) / 1e6;
    }
    return 0;
  }
  // A window at this rate; what is known after it.
  double Window(double mbit, double believed_mbit = 100) {
    std::vector<LinkLook> looks;
    for (int step = 0; step < kWindowSteps; ++step) looks = Step(mbit);
    return Mbit(looks, believed_mbit);
  }

  LinkWatch watch_{TwoStages()};
};

TEST_F(LinkWatchTest, ALinkThatCarriesWhatWasMeasuredIsNoNews) {
  for (const double mbit : {95, 80, 104, 70, 99}) EXPECT_EQ(Window(mbit), 0);
}

TEST_F(LinkWatchTest, ADropIsSeenAfterTwoWindowsAndToldAsWhatComesThrough) {
  EXPECT_EQ(Window(95), 0);
  EXPECT_EQ(Window(9.6), 0) << "one window may be a hiccup";
  EXPECT_NEAR(Window(9.6), 9.8, 0.4);
  EXPECT_EQ(Window(9.6, 9.8), 0) << "it is known now";
}

TEST_F(LinkWatchTest, OneSlowStepIsNoDrop) {
  for (int window = 0; window < 6; ++window) {
    for (int step = 0; step < kWindowSteps; ++step) {
      const bool slow = window == 2 && step == 1;
      EXPECT_EQ(Mbit(Step(slow ? 2 : 95, slow ? 20 : 1.5)), 0);
    }
  }
}

TEST_F(LinkWatchTest, SlowComputeIsNoDrop) {
  for (int window = 0; window < 4; ++window) {
    for (int step = 0; step < kWindowSteps; ++step) EXPECT_EQ(Mbit(Step(95, 60)), 0);
  }
}

// Trains that hold nothing up may be slow for many reasons.
TEST_F(LinkWatchTest, ALinkThatHoldsNothingUpIsLeftAlone) {
  for (int window = 0; window < 4; ++window) {
    for (int step = 0; step < kWindowSteps; ++step)
      EXPECT_EQ(Mbit(Step(9.6, 10, 1)), 0) << "0.8 s of 10";
  }
}

// After a pause TCP begins with ten packets: a train of 100 kB takes most of its time in that.
TEST_F(LinkWatchTest, SlowStartIsNoDrop) {
  constexpr double kBytes = 1e5;
  const double doublings = std::log2(kBytes / 14600);
  const double seconds = 8 * kBytes / 100e6 + kRoundTrip * doublings;
  const double shown = 8 * kBytes / seconds / 1e6;
  ASSERT_LT(shown, 20);
  for (int window = 0; window < 4; ++window) {
    for (int step = 0; step < kWindowSteps; ++step)
      EXPECT_EQ(Mbit(Step(shown, 1.5, 20, kBytes)), 0);
  }
}

TEST_F(LinkWatchTest, ARecoveryIsSeenAsWell) {
  Window(9.6);
  Window(9.6);
  EXPECT_EQ(Window(95, 9.8), 0);
  EXPECT_NEAR(Window(95, 9.8), 95, 1);
}

TEST_F(LinkWatchTest, RatesThatHostsCannotShowAreNotAskedOfThem) {
  for (int window = 0; window < 3; ++window) EXPECT_EQ(Window(900, 8000), 0);
}

TEST_F(LinkWatchTest, WindowsHaveStepsAndSeconds) {
  std::vector<LinkLook> looks;
  for (int step = 0; step < 2 * kWindowSteps; ++step) looks = Step(95, 0.1);
  EXPECT_THAT(looks, IsEmpty()) << "too short";
  for (int step = 0; step < 29; ++step) looks = Step(95, 0.1);
  EXPECT_THAT(looks, IsEmpty());
  while (looks.empty()) looks = Step(95, 0.1);
  EXPECT_THAT(looks, SizeIs(2)) << "both ways";
}

TEST_F(LinkWatchTest, LinksOfAGroupMayShareALine) {
  Plan plan = TwoStages();
  plan.mutable_links(0)->set_kind(LinkPlan::GROUP);
  plan.add_ranks()->set_node_id("c");
  LinkPlan* second = plan.add_links();
  *second = plan.links(0);
  second->set_id("g1-2");
  second->set_lower(1);
  second->set_upper(2);
  watch_ = LinkWatch(plan);
  for (int window = 0; window < 3; ++window) EXPECT_EQ(Window(48), 0) << "half of the line each";
  EXPECT_EQ(Window(5), 0);
  EXPECT_NEAR(Window(5), 10, 0.5);
}

TEST_F(LinkWatchTest, WhereCopiesGoToBuddiesNothingIsKnown) {
  Plan plan = TwoStages();
  plan.mutable_ranks(0)->set_buddy(2);
  watch_ = LinkWatch(plan);
  for (int step = 0; step < 9; ++step) EXPECT_THAT(Step(1), IsEmpty());
}

TEST_F(LinkWatchTest, RanksOfOneDaemonHaveNoLinkToWatch) {
  Plan plan = TwoStages();
  plan.mutable_ranks(1)->set_node_id("a");
  watch_ = LinkWatch(plan);
  for (int step = 0; step < 9; ++step) EXPECT_THAT(Step(1), IsEmpty());
}

}  // namespace
}  // namespace isthmus::coordinator
