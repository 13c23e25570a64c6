// Of the MLP family what gpt_rank_test.cc promises of GPTs: however it is cut, it learns what one
// process learns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/rank/gpt_world.h"

namespace isthmus::worker {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

// Sums of fp32 gradients and of norms are grouped differently by each cut; nothing else differs.
constexpr double kCutTolerance = 1e-5;

void ExpectClose(const std::vector<double>& a, const std::vector<double>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], kCutTolerance * b[i]) << what << ", step " << i;
}

TEST(MlpRank, AnyCutAndScheduleEqualsOneProcess) {
  WorldShape shape = SmallMlp();
  shape.eval_every = 10;
  const RowCorpus corpus(200, shape.inputs, shape.classes, 30);
  shape.stages = 1;
  const GptRun one = RunGpt(shape, corpus);
  ASSERT_THAT(one.losses, SizeIs(20));
  EXPECT_NEAR(one.losses.front(), std::log(5), 0.5);
  EXPECT_LT(one.losses.back(), 0.5 * one.losses.front());
  ASSERT_THAT(one.accuracy, SizeIs(2));
  EXPECT_GT(one.accuracy.back(), 0.6);  // by chance: 0.2
  for (int stages : {1, 2, 3}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      shape.stages = stages;
      shape.schedule = schedule;
      const std::string what = std::to_string(stages) + " stages, " + schedule;
      const GptRun run = RunGpt(shape, corpus);
      ExpectClose(run.losses, one.losses, what);
      ExpectClose(run.validation, one.validation, what);
      EXPECT_EQ(run.accuracy, one.accuracy) << what;
      const GptRun again = RunGpt(shape, corpus);
      EXPECT_EQ(again.losses, run.losses) << what;
      EXPECT_EQ(again.weights, run.weights) << what;
    }
  }
}

TEST(MlpRank, ReplicasOfAnyCutEqualOneProcess) {
  WorldShape shape = SmallMlp();
  const RowCorpus corpus(200, shape.inputs, shape.classes, 30);
  shape.stages = 1;
  shape.replicas = {8, 6};
  const GptRun flat = RunGpt(shape, corpus);
  shape.stages = 2;
  ExpectClose(RunGpt(shape, corpus).losses, flat.losses, "2 x 2");
  shape.buckets = 2;  // backward passes in pieces
  shape.layers = 3;
  shape.stages = 1;
  ExpectClose(RunGpt(shape, corpus).losses, flat.losses, "in pieces");
  EXPECT_LT(flat.losses.back(), 0.8 * flat.losses.front());
}

TEST(MlpRank, LocalStepsOverlapAndCodecsLearnToo) {
  WorldShape shape = SmallMlp();
  shape.steps = 60;
  shape.eval_every = 60;
  shape.constant_rate = true;
  const RowCorpus corpus(200, shape.inputs, shape.classes, 30);
  const auto accuracy = [&](const WorldShape& s) {
    const GptRun run = RunGpt(s, corpus);
    EXPECT_THAT(run.accuracy, SizeIs(1));
    return run.accuracy.empty() ? 0 : run.accuracy.back();
  };
  WorldShape other = shape;
  EXPECT_GT(accuracy(other), 0.85);
  other.forward = "delta(quant(4))";
  other.backward = "quant(6, token, symmetric)";
  EXPECT_GT(accuracy(other), 0.85);
  other = shape;
  other.forward = "autoencoder(12)";
  EXPECT_GT(accuracy(other), 0.85);
  other = shape;
  other.schedule = "overlap";
  EXPECT_GT(accuracy(other), 0.85);
  other = shape;
  other.replicas = {7, 7};
  other.gradients = "ef(quant(8, token))";
  other.local_steps = 5;
  EXPECT_GT(accuracy(other), 0.85);
  other.fragments = 2;
  EXPECT_GT(accuracy(other), 0.85);
}

TEST(MlpRank, ResumesOnAnotherCut) {
  WorldShape shape = SmallMlp();
  shape.checkpoint_every = 10;
  const RowCorpus corpus(200, shape.inputs, shape.classes, 30);
  shape.stages = 1;
  const GptRun one = RunGpt(shape, corpus);
  EXPECT_THAT(one.validation, Each(one.validation.back()));  // at the end alone
  MemoryStore store;
  const World::Options options = GptOptions(&store, &corpus);
  shape.stages = 3;
  RunWorld(MakePlan(shape), options);
  shape.stages = 2;
  World again(MakePlan(shape, 2, 10), options);
  for (const absl::Status& status : again.Run()) ASSERT_TRUE(status.ok()) << status;
  ExpectClose(again.last().losses(), {one.losses.begin() + 10, one.losses.end()}, "resumed");
}

}  // namespace
}  // namespace isthmus::worker
