// Whether a running job takes a new plan when its link carries something else.
#include "coordinator/planner/follow.h"

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_limits.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FollowTest : public ::testing::Test {
 protected:
  FollowTest() {
    PlannerInput& in = input_.planner;
    in.job_id = "bible-1";
    in.job = MakeJob();
    in.job.mutable_strategy()->set_stages(2);
    in.generation = 1;
  }
  void Link(double mbit) {
    Topology* t = &input_.planner.topology;
    t->Clear();
    for (const char* name : {"a", "b"}) *t->add_nodes() = MakeNode(name, 10);
    JoinAll(t, mbit, 5);
    for (const NodeInfo& node : t->nodes()) {  // the coordinator is near
      input_.planner.paths[node.id()].set_up_bits_per_s(1e9);
      input_.planner.paths[node.id()].set_down_bits_per_s(1e9);
    }
  }
  Plan PlanNow() {
    const auto planned = MakePlan(input_.planner);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? planned->plan : Plan();
  }
  // It runs under the plan for `mbit`, and has made `step` of 300 steps.
  void RunAt(double mbit, int64_t step) {
    Link(mbit);
    PlannerInput& in = input_.planner;
    in.previous = PlanNow();
    in.start_step = step;
    in.from_checkpoint = in.follows = true;
    input_.step_s = in.previous.predicted_step_s();
    input_.start_s = 2;
  }
  static std::string Forward(const Plan& plan) { return FormatCodec(plan.links(0).forward()); }

  FollowInput input_;
};

TEST_F(FollowTest, ADropIsFollowedByOtherCodecs) {
  RunAt(1000, 50);
  Link(5);
  input_.step_s = 6;
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_TRUE(decision.moves) << decision.words;
  EXPECT_THAT(decision.words,
              AllOf(StartsWith("a new plan is taken: a step costs "), HasSubstr(", which gains "),
                    HasSubstr(" over the last 250 steps, and the move costs about "),
                    HasSubstr("b0 forward "),
                    HasSubstr(" in place of " + Forward(input_.planner.previous))));
  const Plan next = PlanNow();
  EXPECT_NE(Forward(next), Forward(input_.planner.previous));
  EXPECT_EQ(next.ranks(0).node_id(), input_.planner.previous.ranks(0).node_id());
}

TEST_F(FollowTest, AMoveThatEndsLocalCheckpointsSaysSo) {
  input_.planner.job.mutable_checkpoint()->set_local(kPacedLocal);
  RunAt(1000, 50);
  Link(5);
  input_.step_s = 60;
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_TRUE(decision.moves) << decision.words;
  EXPECT_THAT(decision.words, HasSubstr("; without local checkpoints from then on, for what the "
                                        "codecs of the boundaries remember"));
}

TEST_F(FollowTest, WhatComesBackIsFollowedAsWell) {
  input_.planner.job.mutable_strategy()->set_stages(0);
  RunAt(0.1, 50);
  ASSERT_EQ(input_.planner.previous.ranks_size(), 1);
  Link(1000);
  input_.step_s = 2;
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_TRUE(decision.moves) << decision.words;
  EXPECT_THAT(decision.words, HasSubstr("(layers on a 3, b 3 in place of a 6)"));
}

TEST_F(FollowTest, TheSameFiguresAreNoReason) {
  RunAt(20, 50);
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_FALSE(decision.moves);
  EXPECT_THAT(decision.words, StartsWith("today's plan stays: no other one is a twentieth better"));
  EXPECT_EQ(Forward(PlanNow()), Forward(input_.planner.previous));
}

TEST_F(FollowTest, NearTheEndAMoveDoesNotPay) {
  RunAt(1000, 299);
  Link(5);
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_FALSE(decision.moves) << decision.words;
  EXPECT_THAT(decision.words, AllOf(HasSubstr("today's plan stays: a new one would gain "),
                                    HasSubstr("over the last step, and the move costs about "),
                                    HasSubstr("(it has to gain 1.5 times as much)")));
}

TEST_F(FollowTest, WhatTheLastMoveTookCounts) {
  RunAt(1000, 50);
  Link(5);
  input_.step_s = 6;
  ASSERT_TRUE(DecideFollow(input_).moves);
  input_.move_s = 1e5;
  EXPECT_FALSE(DecideFollow(input_).moves);
}

TEST_F(FollowTest, ACheckpointOverASlowPathCostsToo) {
  RunAt(1000, 200);
  Link(5);
  ASSERT_TRUE(DecideFollow(input_).moves);
  for (auto& [id, path] : input_.planner.paths) path.set_up_bits_per_s(1e5);
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_FALSE(decision.moves) << decision.words;
}

TEST_F(FollowTest, AJobThatNamesAllOfItHasNothingToChoose) {
  JobSpec& job = input_.planner.job;
  job.mutable_compression()->set_forward("bf16");
  job.mutable_compression()->set_backward("bf16");
  job.mutable_compression()->set_tied("bf16");
  job.mutable_strategy()->add_nodes("a");
  job.mutable_strategy()->add_nodes("b");
  job.mutable_strategy()->add_layers_per_stage(3);
  job.mutable_strategy()->add_layers_per_stage(3);
  RunAt(1000, 50);
  Link(1);
  input_.step_s = 100;
  EXPECT_FALSE(DecideFollow(input_).moves);
}

TEST_F(FollowTest, ADaemonThatIsNotThereIsNoReasonToMove) {
  RunAt(1000, 50);
  Link(5);
  input_.planner.topology.mutable_nodes()->RemoveLast();
  const FollowDecision decision = DecideFollow(input_);
  EXPECT_FALSE(decision.moves);
  EXPECT_THAT(decision.words, StartsWith("today's plan stays: "));
}

}  // namespace
}  // namespace isthmus::coordinator
