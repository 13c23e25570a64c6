#include "coordinator/planner/deadlines.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/model/model_cost.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DeadlinesTest : public ::testing::Test {
 protected:
  DeadlinesTest() {
    *plan_.mutable_job() = MakeJob();
    for (int s = 0; s < 2; ++s) {
      RankPlan* stage = plan_.add_ranks();
      stage->set_stage(plan_.ranks_size() - 1);
      stage->set_node_id(s == 0 ? "id-a" : "id-b");
      stage->set_node_name(s == 0 ? "a" : "b");
      stage->set_first_layer(3 * s);
      stage->set_end_layer(3 * s + 3);
      bytes_[s] = 3.0 * StageCost(plan_.job().model(), 3 * s, 3 * s + 3, 1).parameter_bytes();
    }
    in_.first_step_s = in_.again_step_s = 0.1;
    in_.slowest_rate_bits_per_s = 1e9;
    in_.paths = &paths_;
  }
  void Path(const std::string& id, double up, double down) {
    paths_[id].set_up_bits_per_s(up);
    paths_[id].set_down_bits_per_s(down);
  }
  PlannedDeadlines Make() { return MakeDeadlines(plan_, in_); }
  double DrainSeconds() { return Make().deadlines.drain_ms() / 1e3 - 60 - 3 * in_.first_step_s; }
  double OpenSeconds() { return Make().deadlines.open_ms() / 1e3 - 30; }

  Plan plan_;
  double bytes_[2];
  CoordinatorPaths paths_;
  DeadlineInput in_;
};

// A merge of subnetworks takes far longer than the mean step, and stood in no deadline.
TEST_F(DeadlinesTest, TheLongestEndOfARoundIsWaitedFor) {
  const Deadlines without = Make().deadlines;
  EXPECT_THAT(Make().explanation[0], testing::Not(HasSubstr("end of a round")));
  in_.agree_s = 200;
  const Deadlines with = Make().deadlines;
  EXPECT_EQ(with.step_ms() - without.step_ms(), 600'000);
  EXPECT_EQ(with.drain_ms() - without.drain_ms(), 600'000) << "a stop waits for one";
  EXPECT_THAT(Make().explanation[0], HasSubstr(" + 3 x 200 s, the longest end of a round"));
}

// Further replicas of subnetworks store the moments of what is shared alone.
TEST_F(DeadlinesTest, SubnetworksStoreLessThanWholeStages) {
  plan_.mutable_ranks(1)->set_stage(0);
  plan_.mutable_ranks(1)->set_replica(1);
  for (RankPlan& rank : *plan_.mutable_ranks()) {
    rank.set_first_layer(0);
    rank.set_end_layer(6);
  }
  plan_.mutable_job()->mutable_strategy()->set_local_steps(10);
  for (int r = 0; r < 2; ++r) plan_.add_replicas()->set_slice(r);
  Path("id-a", 1e9, 1e9);
  Path("id-b", 1e6, 1e6);
  const double whole = DrainSeconds();
  for (int r = 0; r < 2; ++r) plan_.mutable_deal()->add_shares(0.5);
  const ModelSpec& model = plan_.job().model();
  const double all = StageCost(model, 0, 6, 1).parameter_bytes();
  const double dealt = 4.0 * DealtParameters(model, 0, 6, {0.5});
  EXPECT_NEAR(whole, 3 * 2 * all * 8 / 1e6, 0.01);
  EXPECT_NEAR(DrainSeconds(), 3 * 2 * (all - dealt) * 8 / 1e6, 0.01);
  plan_.set_from_checkpoint(true);
  EXPECT_NEAR(OpenSeconds(), 3 * (all + 2 * (all - dealt)) * 8 / 1e6, 0.01);
}

// The links are fast and the coordinator is far: what checkpoints travel over counts.
TEST_F(DeadlinesTest, CheckpointsTravelOverThePathToTheCoordinator) {
  Path("id-a", 1e8, 1e8);
  Path("id-b", 4e5, 1e6);
  EXPECT_NEAR(DrainSeconds(), 3 * bytes_[1] * 8 / 4e5, 0.01);
  EXPECT_EQ(OpenSeconds(), 0) << "nothing is fetched";
  plan_.set_from_checkpoint(true);
  EXPECT_NEAR(OpenSeconds(), 3 * bytes_[1] * 8 / 1e6, 0.01);
  EXPECT_LT(Make().deadlines.step_ms(), 40'000) << "no step waits for a checkpoint";
  EXPECT_THAT(Make().explanation, SizeIs(2));
  EXPECT_THAT(Make().explanation[1], HasSubstr("slowest path: 400 kbit/s from b"));
}

// A disk of 50 MB/s writes the parts of a wide model for a while, and the other stages wait.
TEST_F(DeadlinesTest, AStepWaitsForADisk) {
  const auto step_s = [&] { return Make().deadlines.step_ms() / 1e3; };
  EXPECT_NEAR(step_s(), 30 + 10 * 0.1, 0.01) << "the floor has room for a second";
  plan_.mutable_job()->mutable_model()->set_hidden(2048);
  const double wide =
      3.0 * StageCost(plan_.job().model(), 0, 3, 1).parameter_bytes() / 50e6;  // 150 M parameters
  EXPECT_GT(wide, 30);
  EXPECT_NEAR(step_s(), 30 + 10 * 0.1 + wide, 1);
  EXPECT_THAT(Make().explanation[0], HasSubstr(" to write a checkpoint to a slow disk"));
}

// Local steps: each replica puts its moments, two of three parts, over its own path.
TEST_F(DeadlinesTest, FurtherReplicasPutTheirMoments) {
  Path("id-a", 1e9, 1e9);
  Path("id-b", 1e9, 1e9);
  Path("id-c", 1e6, 1e9);
  RankPlan* rank = plan_.add_ranks();
  *rank = plan_.ranks(0);
  rank->set_replica(1);
  rank->set_node_id("id-c");
  for (int r = 0; r < 2; ++r) plan_.add_replicas()->set_samples(1);
  const double alone = DrainSeconds();
  plan_.mutable_job()->mutable_strategy()->set_local_steps(5);
  EXPECT_NEAR(DrainSeconds(), 3 * (2 * bytes_[0] / 3) * 8 / 1e6, 0.05);
  EXPECT_LT(alone, 10);
}

// Each could have 10 Mbit/s alone; the coordinator has one line for both.
TEST_F(DeadlinesTest, AllPartsShareTheCoordinatorsLine) {
  Path("id-a", 1e7, 1e7);
  Path("id-b", 1e7, 1e7);
  EXPECT_NEAR(DrainSeconds(), 3 * (bytes_[0] + bytes_[1]) * 8 / 1e7, 0.01);
}

TEST_F(DeadlinesTest, AnUnmeasuredPathIsTakenAsSlow) {
  const double unmeasured = DrainSeconds();
  EXPECT_NEAR(unmeasured, 3 * (bytes_[0] + bytes_[1]) * 8 / 1e7, 0.01) << "10 Mbit/s";
  in_.slowest_rate_bits_per_s = 1e6;
  EXPECT_NEAR(DrainSeconds(), 10 * unmeasured, 0.01) << "no faster than the links";
  EXPECT_THAT(Make().explanation, SizeIs(1)) << "guesses are not told";
  EXPECT_THAT(Make().warnings, IsEmpty());
}

TEST_F(DeadlinesTest, WithoutAByteForLongerWhereThePathIsSlower) {
  Path("id-a", 1e9, 1e9);
  Path("id-b", 1e9, 1e9);
  const int64_t fast = Make().deadlines.checkpoint_ms();
  Path("id-b", 1e5, 1e9);
  EXPECT_GE(fast, 60'000);
  EXPECT_GE(Make().deadlines.checkpoint_ms(), fast + 3 * 80'000);
}

TEST_F(DeadlinesTest, CheckpointsThatComeFasterThanTheyAreStoredAreWarnedOf) {
  Path("id-a", 1e9, 1e9);
  Path("id-b", 4e5, 1e9);
  plan_.mutable_job()->mutable_checkpoint()->set_every(10);
  ASSERT_THAT(Make().warnings, SizeIs(1));
  EXPECT_THAT(Make().warnings[0], HasSubstr("one is due every 1.00 s (checkpoint.every 10)"));
  plan_.mutable_job()->mutable_checkpoint()->set_every(1000000);
  EXPECT_THAT(Make().warnings, IsEmpty());
  plan_.mutable_job()->mutable_checkpoint()->set_every(0);
  EXPECT_THAT(Make().warnings, IsEmpty());
}

TEST_F(DeadlinesTest, NoneIsLongerThanAMonth) {
  Path("id-a", 1e-3, 1e-3);
  Path("id-b", 1e-3, 1e-3);
  EXPECT_EQ(Make().deadlines.drain_ms(), int64_t{30} * 86400 * 1000);
}

}  // namespace
}  // namespace isthmus::coordinator
