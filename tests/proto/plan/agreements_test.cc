#include "proto/plan/agreements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace isthmus {
namespace {

Plan Local(int64_t local_steps, int fragments, int64_t delay, int64_t steps = 1000) {
  Plan plan;
  plan.add_replicas();
  plan.add_replicas();
  plan.mutable_job()->mutable_recipe()->set_steps(steps);
  StrategySpec* s = plan.mutable_job()->mutable_strategy();
  s->set_local_steps(local_steps);
  s->set_fragments(fragments);
  s->set_fragment_delay(delay);
  return plan;
}

// "0: 4-6-8" is fragment 0, offered after step 4, added up after 6, applied after 8; "all: 19".
std::string Agreements(const Plan& plan, int64_t until, int64_t all_from = -1) {
  std::vector<std::string> words;
  for (int64_t from = 0; from < until;) {
    const Agreement next = NextAgreement(plan, from, all_from >= 0 && from >= all_from);
    if (next.apply < 0) break;
    words.push_back(next.of_all() ? absl::StrCat("all: ", next.apply)
                                  : absl::StrCat(next.fragment, ": ", next.offer, "-", next.reduce,
                                                 "-", next.apply));
    if (next.of_all()) all_from = -1;
    from = next.apply + 1;
  }
  return absl::StrJoin(words, ", ");
}

TEST(Agreements, WithoutFragmentsAllAgreeAtTheEndOfEachRound) {
  EXPECT_EQ(Agreements(Local(3, 1, 0, 8), 8), "all: 2, all: 5, all: 7");
  EXPECT_FALSE(Streams(Local(3, 1, 0)));
  EXPECT_EQ(Agreements(Local(1, 1, 0), 8), "") << "there is nothing to agree on";
}

TEST(Agreements, EachFragmentHasItsStepInARound) {
  const Plan plan = Local(10, 2, 0, 30);
  EXPECT_TRUE(Streams(plan));
  EXPECT_EQ(Agreements(plan, 30),
            "0: 4-4-4, 1: 9-9-9, 0: 14-14-14, 1: 19-19-19, 0: 24-24-24, "
            "all: 29");
  EXPECT_EQ(Agreements(Local(7, 3, 0, 15), 15),
            "0: 1-1-1, 1: 3-3-3, 2: 6-6-6, 0: 8-8-8, 1: 10-10-10, 2: 13-13-13, all: 14");
}

// Half of the delay is for contributions, half for sums; what would come too late is not sent.
TEST(Agreements, AFragmentMayCrossWhileTrainingGoesOn) {
  EXPECT_EQ(Agreements(Local(10, 2, 4, 30), 30),
            "0: 4-6-8, 1: 9-11-13, 0: 14-16-18, 1: 19-21-23, 0: 24-26-28, all: 29");
  EXPECT_EQ(Agreements(Local(10, 2, 3, 27), 27),
            "0: 4-6-7, 1: 9-11-12, 0: 14-16-17, 1: 19-21-22, all: 26");
  EXPECT_EQ(Agreements(Local(10, 1, 9, 40), 40), "0: 9-14-18, 0: 19-24-28, 0: 29-34-38, all: 39");
}

TEST(Agreements, ValidationsAndCheckpointsAreOfWeightsThatAllHold) {
  Plan plan = Local(10, 2, 2, 100);
  plan.mutable_job()->mutable_checkpoint()->set_every(25);
  EXPECT_EQ(Agreements(plan, 40),
            "0: 4-5-6, 1: 9-10-11, 0: 14-15-16, 1: 19-20-21, 0: 24-25-26, all: 29, 0: 34-35-36, "
            "1: 39-40-41");
  EXPECT_TRUE(CheckpointAfter(plan, 29));
  EXPECT_FALSE(CheckpointAfter(plan, 24)) << "not all agree there";
  plan.mutable_job()->mutable_recipe()->set_eval_samples(1);
  plan.mutable_job()->mutable_recipe()->set_eval_every(10);
  EXPECT_EQ(Agreements(plan, 20), "0: 4-5-6, all: 9, 0: 14-15-16, all: 19");
}

// A stop that was asked for: the end of the round, and no fragment is under way then.
TEST(Agreements, WhatIsAskedForComesAtTheEndOfTheRound) {
  EXPECT_EQ(Agreements(Local(10, 2, 4), 30, 9),
            "0: 4-6-8, all: 9, 0: 14-16-18, 1: 19-21-23, 0: 24-26-28, 1: 29-31-33");
  EXPECT_EQ(Agreements(Local(10, 2, 4), 30, 14),
            "0: 4-6-8, 1: 9-11-13, 0: 14-16-18, all: 19, "
            "0: 24-26-28, 1: 29-31-33");
}

// T11.4 of the algorithms, and one agreement at a time, whatever the numbers.
TEST(Agreements, FragmentsAreDisjointCoverAllAndFollowEachOther) {
  for (int64_t round : {2, 3, 7, 24}) {
    for (int fragments = 1; fragments <= std::min<int64_t>(round, 5); ++fragments) {
      for (int64_t delay = 0; delay < round / fragments; ++delay) {
        const Plan plan = Local(round, fragments, delay, 20 * round + 1);
        std::vector<int> of(fragments);
        int64_t before = -1;
        Agreement next = NextAgreement(plan, 0, false);
        while (next.apply >= 0) {
          SCOPED_TRACE(testing::Message()
                       << round << " " << fragments << " " << delay << " " << next.offer);
          ASSERT_GT(next.offer, before);
          EXPECT_LE(next.offer, next.reduce);
          EXPECT_LE(next.reduce, next.apply);
          if (next.of_all()) {
            for (int& count : of) ++count;
          } else {
            ++of[next.fragment];
          }
          before = next.apply;
          next = NextAgreement(plan, next.apply + 1, false);
        }
        EXPECT_EQ(before, 20 * round) << "the last step is of all";
        for (int count : of) EXPECT_NEAR(count, 20, 2);
      }
    }
    std::set<int> fragments;
    for (int layer = 0; layer < 12; ++layer) {
      JobSpec job;
      job.mutable_strategy()->set_fragments(4);
      fragments.insert(FragmentOf(job, layer));
    }
    EXPECT_EQ(fragments, (std::set<int>{0, 1, 2, 3}));
  }
}

TEST(Agreements, AListIsFollowedInParts) {
  Plan plan = Local(10, 2, 4);
  for (int part : {0, 1}) {
    GroupPlan* group = plan.add_groups();
    group->set_part(part);
    group->set_parts(2);
  }
  RankPlan* rank = plan.add_ranks();
  for (const Action::Op op : {Action::OFFER, Action::REDUCE, Action::COLLECT}) {
    for (int g : {0, 1}) {
      Action* a = rank->add_agree();
      a->set_op(op);
      a->set_group(g);
    }
  }
  rank->add_agree()->set_op(Action::DECIDE);
  std::vector<std::string> done;
  for (const Action& a : AgreementsOfRounds(plan, 0))
    done.push_back(absl::StrCat(Action::Op_Name(a.op()), a.op() == Action::DECIDE ? "" : " ",
                                a.op() == Action::DECIDE ? "" : absl::StrCat(a.group())));
  const std::string round =
      "OFFER 0, REDUCE 0, COLLECT 0, DECIDE, OFFER 1, REDUCE 1, COLLECT 1, "
      "DECIDE, OFFER 0, REDUCE 0, COLLECT 0, DECIDE";
  EXPECT_EQ(absl::StrJoin(done, ", "), round +
                                           ", OFFER 0, OFFER 1, REDUCE 0, REDUCE 1, COLLECT 0, "
                                           "COLLECT 1, DECIDE");
}

}  // namespace
}  // namespace isthmus
