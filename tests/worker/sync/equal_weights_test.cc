// F57: ranks that must hold the same weights compare hashes; whole sessions do in
// tests/rank/session_equal_test.cc.
#include "worker/sync/equal_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Replicas of two stages each; group 0 is that of the tied embedding.
WorldShape Shape(std::vector<int> replicas, bool check_buffers = false) {
  WorldShape shape;
  shape.replicas = std::move(replicas);
  shape.check_buffers = check_buffers;
  return shape;
}

class EqualWeightsTest : public ::testing::Test {
 protected:
  void Open(const WorldShape& shape, int rank, bool on_device = false) {
    plan_ = SessionPlan::Make(MakePlan(shape), rank).value();
    stage_ = FakeStages()(plan_->plan(), rank).value();
    weights_ = std::make_unique<EqualWeights>(*plan_, on_device);
  }
  int GroupOf(GroupPlan::Tensors set) const {
    for (const int g : plan_->groups()) {
      if (plan_->plan().groups(g).tensors() == set) return g;
    }
    return -1;
  }
  uint64_t Own() const { return weights_->hash(GroupOf(GroupPlan::OWN)); }
  void Flip(Stage* stage) {
    const float other = 5;
    ASSERT_TRUE(stage->WriteTensor(0, 0, {&other, 1}).ok());
  }

  std::unique_ptr<const SessionPlan> plan_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<EqualWeights> weights_;
};

TEST_F(EqualWeightsTest, OneWeightChangesTheHash) {
  Open(Shape({4, 3}), 0);
  const uint64_t hash = HashWeights(GroupPlan::OWN, true, stage_.get()).value();
  EXPECT_EQ(HashWeights(GroupPlan::OWN, true, stage_.get()).value(), hash);
  Flip(stage_.get());
  EXPECT_NE(HashWeights(GroupPlan::OWN, true, stage_.get()).value(), hash);
}

TEST_F(EqualWeightsTest, BothEndsOfATiedEmbeddingHaveOneHash) {
  Open(Shape({4, 3}), 0);
  const auto last = FakeStages()(plan_->plan(), 1).value();
  const uint64_t hash = HashWeights(GroupPlan::TIED, true, stage_.get()).value();
  EXPECT_EQ(HashWeights(GroupPlan::TIED, false, last.get()).value(), hash);
  EXPECT_NE(HashWeights(GroupPlan::OWN, true, stage_.get()).value(), hash);
  Flip(stage_.get());  // of a layer
  EXPECT_EQ(HashWeights(GroupPlan::TIED, true, stage_.get()).value(), hash);
}

TEST_F(EqualWeightsTest, TakenAsTheSessionBeginsAndNowAndThen) {
  Open(Shape({4, 3}), 0);
  for (int64_t step = 40; step < 340; ++step) {
    ASSERT_TRUE(weights_->Take(step, stage_.get()).ok());
    EXPECT_EQ(Own() != 0, (step - 40) % EqualWeights::kEvery == 0) << step;
  }
  Open(Shape({4, 3}), 0, /*on_device=*/true);
  for (int64_t step = 40; step < 340; ++step) {
    ASSERT_TRUE(weights_->Take(step, stage_.get()).ok());
    EXPECT_EQ(Own() != 0, step == 40) << step;
  }
  Open(Shape({4, 3}, /*check_buffers=*/true), 0, /*on_device=*/true);
  for (int64_t step = 40; step < 45; ++step) {
    ASSERT_TRUE(weights_->Take(step, stage_.get()).ok());
    EXPECT_NE(Own(), 0u) << step;
  }
}

TEST_F(EqualWeightsTest, SubnetworksShowNone) {
  WorldShape shape = Shape({4, 3});
  shape.stages = 1;
  shape.subnetworks = true;
  shape.real_stages = true;
  shape.heads = 2;
  shape.local_steps = 3;
  plan_ = SessionPlan::Make(MakePlan(shape), 0).value();
  EqualWeights weights(*plan_, false);
  ASSERT_TRUE(weights.Take(0, nullptr).ok()) << "the stage is not asked";
  for (const int g : plan_->groups()) EXPECT_EQ(weights.hash(g), 0u);
}

TEST_F(EqualWeightsTest, NamesTheReplicaThatDiffers) {
  for (const auto& [mine, odd] : {std::pair{0, 2}, {2, 0}, {4, 2}}) {
    Open(Shape({3, 3, 1}), mine);  // stage 0 of the replicas: ranks 0, 2, 4
    ASSERT_TRUE(weights_->Take(0, stage_.get()).ok());
    const int group = GroupOf(GroupPlan::OWN);
    const uint64_t same = Own(), other = same + 1;
    for (const int peer : {0, 2, 4}) {
      if (peer != mine) weights_->Heard(group, peer, peer == odd || mine == odd ? other : same);
    }
    const absl::Status status = weights_->Compare(group);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("before step 0 are not those of"));
  }
}

TEST_F(EqualWeightsTest, TheFewestAreTheOddOnes) {
  Open(Shape({3, 3, 1}), 4);
  ASSERT_TRUE(weights_->Take(0, stage_.get()).ok());
  const int group = GroupOf(GroupPlan::OWN);
  weights_->Heard(group, 0, Own() + 1);
  weights_->Heard(group, 2, Own());
  EXPECT_THAT(weights_->Compare(group).message(),
              AllOf(HasSubstr("the weights of stage 0 of replica 0 (node-0"),
                    HasSubstr("are not those of stage 0 of replica 1 (node-2"),
                    HasSubstr("They differed as the session began"),
                    HasSubstr("Resume the job from its last checkpoint")));
  // Two replicas: checkpoints are of the first one.
  Open(Shape({4, 3}), 0);
  ASSERT_TRUE(weights_->Take(0, stage_.get()).ok());
  weights_->Heard(group, 2, Own());
  ASSERT_TRUE(weights_->Compare(group).ok());
  ASSERT_TRUE(weights_->Take(100, stage_.get()).ok());
  weights_->Heard(group, 2, Own() + 1);
  EXPECT_THAT(weights_->Compare(group).message(),
              AllOf(HasSubstr("the weights of stage 0 of replica 1 (node-2, 10.0.0.3:7071) before "
                              "step 100 are not those of stage 0 of replica 0"),
                    HasSubstr("from a checkpoint of step 0 or before")));
}

// An older daemon shows none, nor does one with a GPU most of the time.
TEST_F(EqualWeightsTest, WhoShowsNoneIsTakenAsItIs) {
  Open(Shape({3, 3, 1}), 0);
  const int group = GroupOf(GroupPlan::OWN);
  ASSERT_TRUE(weights_->Take(0, stage_.get()).ok());
  weights_->Heard(group, 2, 0);
  weights_->Heard(group, 4, Own());
  EXPECT_TRUE(weights_->Compare(group).ok());
  weights_->Heard(group, 2, 0);
  weights_->Heard(group, 4, Own() + 1);
  EXPECT_THAT(weights_->Compare(group).message(),
              AllOf(HasSubstr("replica 2"), Not(HasSubstr("replica 1"))));
  ASSERT_TRUE(weights_->Take(1, stage_.get()).ok());
  weights_->Heard(group, 2, 77);
  EXPECT_TRUE(weights_->Compare(group).ok()) << "this rank has none";
}

}  // namespace
}  // namespace isthmus::worker
