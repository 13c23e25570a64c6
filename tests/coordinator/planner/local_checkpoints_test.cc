// What plans say of local checkpoints, and who keeps copies of whose.
#include "coordinator/planner/local_checkpoints.h"

#include <string>
#include <vector>

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/job_limits.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class LocalCheckpointsTest : public ::testing::Test {
 protected:
  LocalCheckpointsTest() {
    in_.job_id = "job";
    in_.generation = 1;
    in_.job = MakeJob();
    in_.job.mutable_strategy()->set_stages(3);
    for (const char* name : {"a", "b", "c"}) {
      *in_.topology.add_nodes() = MakeNode(name, 10);
      in_.job.mutable_strategy()->add_nodes(name);
    }
    JoinAll(&in_.topology, 100, 20);
    in_.job.mutable_checkpoint()->set_local(1);
  }
  LinkMeasurement* Link(const std::string& from, const std::string& to) {
    for (LinkMeasurement& m : *in_.topology.mutable_links()) {
      if (m.from_id() == "id-" + from && m.to_id() == "id-" + to) return &m;
    }
    ADD_FAILURE() << from << to;
    return nullptr;
  }
  PlannedJob Planned() {
    auto planned = MakePlan(in_);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return *std::move(planned);
  }
  static std::vector<std::string> Words(const Plan& plan) {
    return {plan.explanation().begin(), plan.explanation().end()};
  }

  PlannerInput in_;
};

TEST_F(LocalCheckpointsTest, APlanSaysHowOftenAndHowLarge) {
  EXPECT_THAT(Words(Planned().plan), Contains(HasSubstr("local checkpoints: after every step, each "
                                                        "at most ")));
  in_.job.mutable_checkpoint()->set_local(7);
  EXPECT_THAT(Words(Planned().plan), Contains(HasSubstr("after every 7 steps")));
  in_.job.mutable_checkpoint()->set_local(1000000);
  EXPECT_THAT(Words(Planned().plan),
              Contains(HasSubstr("local checkpoints: none, for the job has ")));
  in_.job.mutable_checkpoint()->set_local(kPacedLocal);
  EXPECT_THAT(Words(Planned().plan),
              Contains(HasSubstr("as often as writing takes at most a 25th of "
                                 "the time")));
  in_.job.mutable_strategy()->set_schedule("overlap");
  EXPECT_THAT(Words(Planned().plan), Contains(HasSubstr("local checkpoints: none, for steps that "
                                                        "overlap")));
  in_.job.mutable_checkpoint()->set_local(0);
  EXPECT_THAT(Words(Planned().plan), Not(Contains(HasSubstr("local checkpoints"))));
}

TEST_F(LocalCheckpointsTest, ABuddyWithoutLocalCheckpointsIsAWarning) {
  in_.job.mutable_checkpoint()->set_buddies(1);
  in_.job.mutable_checkpoint()->set_local(kPacedLocal);
  in_.job.mutable_compression()->set_forward("delta(quant(4))");
  EXPECT_THAT(Planned().warnings, Contains(HasSubstr("no buddy keeps a copy of anything: there are "
                                                     "no local checkpoints, for what the codecs")));
}

TEST_F(LocalCheckpointsTest, WithoutBuddiesNobodyKeepsACopy) {
  const PlannedJob planned = Planned();
  for (const RankPlan& rank : planned.plan.ranks()) EXPECT_EQ(rank.buddy(), 0);
}

TEST_F(LocalCheckpointsTest, TheBuddyIsWhomTheDaemonReachesFastest) {
  in_.job.mutable_checkpoint()->set_buddies(1);
  Link("a", "c")->set_rate_bits_per_s(2e8);
  Link("b", "c")->set_rate_bits_per_s(3e8);
  const PlannedJob planned = Planned();
  EXPECT_EQ(planned.plan.ranks(0).buddy(), 3);
  EXPECT_EQ(planned.plan.ranks(1).buddy(), 3);
  EXPECT_NE(planned.plan.ranks(2).buddy(), 3) << "nobody is their own";
  EXPECT_THAT(Words(planned.plan), Contains(HasSubstr("buddies keep copies of local checkpoints: c "
                                                      "of a's (")));
  EXPECT_THAT(planned.warnings, Not(Contains(HasSubstr("buddy"))));
}

TEST_F(LocalCheckpointsTest, OneThatCanDialNobodyHasNone) {
  in_.job.mutable_checkpoint()->set_buddies(1);
  for (const char* to : {"b", "c"}) Link("a", to)->set_error("it can't be dialled");
  const PlannedJob planned = Planned();
  EXPECT_EQ(planned.plan.ranks(0).buddy(), 0);
  EXPECT_GT(planned.plan.ranks(1).buddy(), 0);
  EXPECT_THAT(planned.warnings, Contains(HasSubstr("no buddy keeps a copy of what lies on a: ")));
}

}  // namespace
}  // namespace isthmus::coordinator
