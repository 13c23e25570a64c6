#include "proto/plan/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/plan/schedule.h"
#include "proto/plan/wiring.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

Action Make(Action::Op op, int link, FrameHeader::Kind what) {
  Action a;
  a.set_op(op);
  a.set_link(link);
  a.set_what(what);
  return a;
}

Action OfGroup(Action::Op op, int group) {
  Action a;
  a.set_op(op);
  a.set_group(group);
  return a;
}

Wiring Trio(bool sharded) {
  Wiring wiring;
  wiring.ranks = 3;
  wiring.links = {{0, 1, false, "g0-1", 0}, {0, 2, false, "g0-2", 0}, {1, 2, false, "g1-2", 0}};
  wiring.groups = {{{0, 1, 2}, sharded, "all"}};
  return wiring;
}

TEST(Wiring, OfAPlanAndOfAChain) {
  Plan plan;
  plan.add_ranks();
  plan.add_ranks();
  LinkPlan* link = plan.add_links();
  link->set_id("b0");
  link->set_upper(1);
  link = plan.add_links();
  link->set_id("tied");
  link->set_kind(LinkPlan::GROUP);
  link->set_upper(1);
  const Wiring wiring = Wiring::Of(plan);
  EXPECT_EQ(wiring.ranks, 2);
  EXPECT_EQ(wiring.GroupLink(1, 0), 1);
  EXPECT_EQ(Wiring::Chain(4).links.size(), 3u);
  EXPECT_EQ(Wiring::Chain(4).GroupLink(0, 1), -1) << "a boundary is no link of a group";
}

TEST(Simulation, AGroupWaitsForAllOfItsRanks) {
  for (const bool sharded : {false, true}) {
    const Wiring wiring = Trio(sharded);
    std::vector<ActionList> lists(3);
    for (ActionList& list : lists) {
      list = {OfGroup(Action::OFFER, 0), OfGroup(Action::REDUCE, 0)};
      if (sharded) list.push_back(OfGroup(Action::COLLECT, 0));
    }
    const ScheduleCosts costs = ScheduleCosts::Unit(wiring);
    EXPECT_TRUE(Simulate(lists, wiring, 1, costs).ok())
        << Simulate(lists, wiring, 1, costs).status();
    lists[2].erase(lists[2].begin());
    EXPECT_THAT(Simulate(lists, wiring, 4, costs).status().message(),
                HasSubstr(sharded ? "the sum of all comes next"
                                  : "rank 0, action 1 (REDUCE all): deadlock"));
  }
}

// Gradients of one link that take different times: those of an epilogue.
TEST(Simulation, AGradientMayHaveATimeOfItsOwn) {
  const Wiring wiring = Wiring::Chain(2);
  const auto schedule = BuildSchedule("1f1b", 2, 3).value();
  ScheduleCosts costs = ScheduleCosts::Unit(wiring);
  const double free_s = Simulate(schedule, wiring, 4, costs)->makespan_s;
  costs.gradient_s = {{0, 0, 5}};
  EXPECT_DOUBLE_EQ(Simulate(schedule, wiring, 4, costs)->makespan_s, free_s + 5);
  costs.down_s = {7};
  costs.gradient_s = {{}};
  const double slow_s = Simulate(schedule, wiring, 4, costs)->makespan_s;
  costs.gradient_s = {{7, 7, 7}};
  EXPECT_DOUBLE_EQ(Simulate(schedule, wiring, 4, costs)->makespan_s, slow_s);
}

TEST(Simulation, WhatDoesNotFitIsNamed) {
  const Wiring wiring = Trio(false);
  const ScheduleCosts costs = ScheduleCosts::Unit(wiring);
  const auto message = [&](const std::vector<ActionList>& lists, const Wiring& w) {
    return std::string(Simulate(lists, w, 2, costs).status().message());
  };
  EXPECT_THAT(message({{Make(Action::SEND, 7, FrameHeader::VOTE)}, {}, {}}, wiring),
              HasSubstr("SEND vote on link 7): there are 3 links"));
  EXPECT_THAT(message({{Make(Action::SEND, 2, FrameHeader::VOTE)}, {}, {}}, wiring),
              HasSubstr("g1-2 does not end here"));
  EXPECT_THAT(message({{Make(Action::SEND, 0, FrameHeader::VOTE)},
                       {Make(Action::RECV, 0, FrameHeader::DECISION)},
                       {}},
                      wiring),
              HasSubstr("the vote comes next on g0-1, not the decision"));
  EXPECT_THAT(message({{Make(Action::SEND, 0, FrameHeader::CONTRIBUTION)}, {}, {}}, wiring),
              HasSubstr("is sent and not received"));
  EXPECT_THAT(message({{OfGroup(Action::OFFER, 3)}, {}, {}}, wiring),
              HasSubstr("there are 1 groups"));
  Wiring cut = wiring;
  cut.links.pop_back();
  EXPECT_THAT(message({{}, {OfGroup(Action::OFFER, 0)}, {}}, cut),
              HasSubstr("there is no link to rank 2 for all"));
  cut = wiring;
  cut.groups[0].ranks = {0, 1};
  EXPECT_THAT(message({{}, {}, {OfGroup(Action::OFFER, 0)}}, cut),
              HasSubstr("this rank is not in all"));
  EXPECT_EQ(Simulate({{}, {}, {}}, wiring, 1, ScheduleCosts()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus
