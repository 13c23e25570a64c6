#include "proto/plan/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "proto/plan/schedule.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Words(const ActionList& list) {
  std::vector<std::string> words;
  for (const Action& a : list) {
    if (a.op() != Action::FWD && a.op() != Action::BWD && a.op() != Action::STEP) continue;
    const char* op = a.op() == Action::STEP ? "S" : a.op() == Action::FWD ? "F" : "B";
    words.push_back(a.op() == Action::STEP ? absl::StrCat(op, ":", a.ahead())
                                           : absl::StrCat(op, a.micro(), ":", a.ahead()));
  }
  return words;
}

TEST(Overlap, TheNextStepsPassesLieBetween) {
  const auto lists = OverlapChain(2, 3, {}, false).value();
  EXPECT_THAT(Words(lists[0]), ElementsAre("F0:1", "B2:0", "F1:1", "B0:1", "F2:1", "B1:1", "S:0"));
  EXPECT_THAT(Words(lists[1]), ElementsAre("F0:1", "B0:1", "F1:1", "B1:1", "F2:1", "B2:1", "S:0"));
  // Filled, three steps, drained: each step's weights are those before the last update.
  EXPECT_THAT(Words(Unroll(lists[0], 2)),
              ElementsAre("F0:0", "F1:0", "B0:0", "F2:0", "B1:0",                 //
                          "F0:1", "B2:0", "F1:1", "B0:1", "F2:1", "B1:1", "S:0",  //
                          "B2:1", "S:1"));
}

// Whatever the shape: each step has each pass once, in order, and nothing deadlocks.
TEST(Overlap, AnyShapeRuns) {
  for (int stages : {1, 2, 3, 5, 8}) {
    for (int micros : {1, 2, 3, 8, 20}) {
      for (int apart : {0, 1, 3}) {
        std::vector<int> warmups;
        for (int s = 0; s < stages; ++s) warmups.push_back((stages - 1 - s) * apart);
        for (const bool reduces : {false, true}) {
          const auto lists = OverlapChain(stages, micros, warmups, reduces).value();
          const Wiring wiring = Wiring::Chain(stages);
          const absl::StatusOr<Simulation> run =
              Simulate(UnrollAll(lists, 4), wiring, 4, ScheduleCosts::Unit(wiring));
          ASSERT_TRUE(run.ok()) << stages << " x " << micros << ", " << apart << ": "
                                << run.status();
          for (const ActionList& list : lists) {
            std::map<std::string, int> count;
            for (const std::string& word : Words(Unroll(list, 4))) ++count[word];
            EXPECT_EQ(count.size(), 4u * (2 * micros + 1));
            for (const auto& [word, times] : count) EXPECT_EQ(times, 1) << word;
          }
        }
      }
    }
  }
}

// With enough micro-batches nothing idles between steps: a step takes what its slowest part takes.
TEST(Overlap, AStepTakesItsSlowestPart) {
  for (const double latency : {0.0, 2.0}) {
    ScheduleCosts costs = ScheduleCosts::Unit(Wiring::Chain(8));
    costs.latency_s.assign(7, latency);
    const int micros = 40, queue_limit = 8;
    const double bound = 3 * micros;
    const auto seconds = [&](const std::string& schedule) {
      const auto warmups = WarmUpForwards(costs, 8, micros, queue_limit, VoteFrames(schedule));
      return StepSeconds(schedule, 8, micros, warmups, 2 * queue_limit, costs).value();
    };
    EXPECT_LT(seconds("overlap"), 1.001 * bound) << latency;
    EXPECT_GT(seconds("1f1b"), 1.15 * bound) << latency;
  }
}

// Where all micro-batches are under way at once, stages wait until the vote has gone down the chain
// and the decision up.
TEST(Overlap, FewMicroBatchesWait) {
  ScheduleCosts costs = ScheduleCosts::Unit(Wiring::Chain(4));
  costs.latency_s.assign(3, 5);
  const double overlap = StepSeconds("overlap", 4, 3, {}, 4, costs).value();
  EXPECT_GT(overlap, 2 * 3 * 5);
  EXPECT_LT(overlap, StepSeconds("1f1b", 4, 3, {}, 4, costs).value());
}

TEST(Overlap, ThePictureHasTwoSteps) {
  const auto lists = OverlapChain(2, 3, {}, false).value();
  const auto lines = SchedulePicture(lists, Wiring::Chain(2), 4);
  EXPECT_THAT(lines,
              ElementsAre("stage 0  |F0 |F1 |.  |.  |B0 |B0 |F2 |B1 |B1 |f0 |B2 |B2 |f1 |b0 |b0 "
                          "|f2 |b1 |b1 |.  |b2 |b2 |",
                          "stage 1  |.  |F0 |B0 |B0 |F1 |B1 |B1 |F2 |B2 |B2 |f0 |b0 |b0 |f1 |b1 "
                          "|b1 |f2 |b2 |b2 |.  |.  |"));
}

TEST(Overlap, WhatCantBeBuiltIsRefused) {
  EXPECT_THAT(BuildOverlap(0, 3, {}, false).status().message(), HasSubstr("0 stages"));
  EXPECT_THAT(BuildOverlap(2, 3, {0, 1}, false).status().message(), HasSubstr("never grow"));
  EXPECT_THAT(
      StepSeconds("zigzag", 2, 3, {}, 4, ScheduleCosts::Unit(Wiring::Chain(2))).status().message(),
      HasSubstr("zigzag"));
}

}  // namespace
}  // namespace isthmus
