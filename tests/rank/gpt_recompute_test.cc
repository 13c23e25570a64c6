// recipe.recompute in sessions with the real engine: the same losses and weights, bit for bit, and
// the same frames, whatever the schedule and strategy. A layer that is computed again reaches no
// codec: each sees a micro-batch once.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/rank/gpt_world.h"
#include "tests/worker/link/memory_states.h"

namespace isthmus::worker {
namespace {

struct Trained {
  std::vector<double> losses, validation;
  int64_t key_frames = 0;
  std::map<std::string, int64_t> bytes;  // by link
  std::string weights;
};

Trained RunWith(const WorldShape& shape, bool recompute) {
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  MemoryStore store;
  MemoryStates states;
  World::Options options = GptOptions(&store, &corpus);
  options.codec_states = &states;
  Plan plan = MakePlan(shape);
  plan.mutable_job()->mutable_recipe()->set_recompute(recompute);
  World world(plan, options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  Trained run;
  run.losses = world.Losses();
  run.weights = world.Weights(shape.steps);
  for (int r = 0; r < plan.ranks_size(); ++r) {
    for (const StepRecord& record : world.observer(r).records()) {
      if (record.has_validation_loss()) run.validation.push_back(record.validation_loss());
      run.key_frames += record.key_frames();
      for (const DirectionBytes& d : record.directions()) run.bytes[d.link_id()] += d.wire_bytes();
    }
  }
  return run;
}

void ExpectTheSame(const WorldShape& shape) {
  const Trained kept = RunWith(shape, false), again = RunWith(shape, true);
  ASSERT_EQ(kept.losses.size(), shape.steps);
  EXPECT_LT(kept.losses.back(), kept.losses.front());
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_EQ(again.validation, kept.validation);
  EXPECT_EQ(again.key_frames, kept.key_frames);
  EXPECT_EQ(again.bytes, kept.bytes);
  EXPECT_TRUE(again.weights == kept.weights);
}

WorldShape Small(int stages) {
  WorldShape shape = SmallGpt();
  shape.stages = stages;
  shape.steps = 20;
  shape.eval_every = 10;
  return shape;
}

// With hashes of both ends' buffers compared in every step.
TEST(GptRecompute, DeltaCodecsSeeEachMicroBatchOnce) {
  for (const char* schedule : {"1f1b", "gpipe", "overlap"}) {
    WorldShape shape = Small(3);
    shape.schedule = schedule;
    shape.forward = "delta(quant(4))";
    shape.backward = "ef(quant(6))";
    shape.check_buffers = true;
    shape.look_ahead = true;
    SCOPED_TRACE(schedule);
    ExpectTheSame(shape);
  }
}

TEST(GptRecompute, ReplicasWithGradientsInBuckets) {
  WorldShape shape = Small(2);
  shape.global_batch = 8;
  shape.replicas = {5, 3};
  shape.buckets = 2;
  ExpectTheSame(shape);
}

TEST(GptRecompute, LocalStepsInFragments) {
  WorldShape shape = Small(2);
  shape.global_batch = 8;
  shape.replicas = {5, 3};
  shape.local_steps = 4;
  shape.fragments = 2;
  shape.fragment_delay = 1;
  shape.eval_every = 0;
  ExpectTheSame(shape);
}

TEST(GptRecompute, SlicesOfSubnetworks) {
  WorldShape shape = Small(1);
  shape.replicas = {4, 3};
  shape.subnetworks = true;
  shape.local_steps = 4;
  shape.outer_learning_rate = 1;
  shape.outer_momentum = 0;
  shape.eval_every = 0;
  ExpectTheSame(shape);
}

}  // namespace
}  // namespace isthmus::worker
