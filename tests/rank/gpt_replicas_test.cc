// Replicas with the real engine: they learn what one process learns that makes the passes of all,
// whatever the cut; and what they exchange may be compressed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/rank/gpt_world.h"

namespace isthmus::worker {
namespace {

using ::testing::SizeIs;

// Sums of fp32 gradients and of norms are grouped differently; nothing else differs.
constexpr double kTolerance = 1e-5;

struct ReplicaRun {
  std::vector<double> losses;  // of each step, of all replicas together
  int64_t group_bytes = 0;     // on links of groups
};

ReplicaRun RunReplicas(const WorldShape& shape, const Corpus& corpus) {
  MemoryStore store;
  World world(MakePlan(shape), GptOptions(&store, &corpus));
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  ReplicaRun run;
  run.losses = world.Losses();
  for (int r = 0; r < world.plan().ranks_size(); ++r) {
    for (const StepRecord& record : world.observer(r).records()) {
      for (const DirectionBytes& d : record.directions())
        run.group_bytes += d.link_id()[0] == 'g' ? d.wire_bytes() : 0;
    }
  }
  return run;
}

// One stage that makes the passes of every replica, one after the other, in fp32.
std::vector<double> RunAlone(const WorldShape& shape, const Corpus& corpus) {
  WorldShape one = shape;
  one.stages = 1;
  one.replicas.clear();
  const Plan plan = MakePlan(one);
  auto stage = GptStages()(plan, 0).value();
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  const double tokens = static_cast<double>(shape.global_batch) * shape.context;
  std::vector<double> losses;
  for (int64_t step = 0; step < shape.steps; ++step) {
    double loss = 0;
    for (SampleOrder& order : orders) {
      const std::vector<uint32_t> ids = order.Step(step);
      loss += RunPasses(stage.get(), corpus, ids, shape, 1 / tokens);
    }
    losses.push_back(loss / tokens);
    ApplyStep(stage.get(), plan.job().recipe(), step);
  }
  return losses;
}

TEST(GptReplicas, AnyNumberAndCutEqualsOneProcess) {
  WorldShape shape = SmallGpt();
  shape.steps = 10;
  shape.global_batch = 8;
  const TextCorpus corpus(GenerateText(4000, 1), shape.context, 20);
  for (const std::vector<int>& samples :
       {std::vector<int>{5, 3}, {2, 4, 2}, {2, 1, 2, 1, 2}, {2, 1, 1, 1, 1, 1, 1}}) {
    if (samples.size() == 7) shape.micro_batch = 1;
    shape.replicas = samples;
    const std::vector<double> alone = RunAlone(shape, corpus);
    for (int stages : {1, 2, 4}) {
      if (stages == 4 && samples.size() > 3) continue;  // 28 ranks are many threads
      shape.stages = stages;
      const ReplicaRun run = RunReplicas(shape, corpus);
      ASSERT_THAT(run.losses, SizeIs(alone.size()));
      for (size_t i = 0; i < alone.size(); ++i)
        EXPECT_NEAR(run.losses[i], alone[i], kTolerance * alone[i])
            << samples.size() << " x " << stages << ", step " << i;
    }
  }
}

TEST(GptReplicas, AHeadOfItsOwnEqualsOneProcess) {
  WorldShape shape = SmallGpt();
  shape.steps = 10;
  shape.global_batch = 8;
  shape.replicas = {5, 3};
  shape.tied_head = false;
  const TextCorpus corpus(GenerateText(4000, 1), shape.context, 20);
  const std::vector<double> alone = RunAlone(shape, corpus);
  for (int stages : {1, 2}) {
    shape.stages = stages;
    const ReplicaRun run = RunReplicas(shape, corpus);
    ASSERT_THAT(run.losses, SizeIs(alone.size()));
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_NEAR(run.losses[i], alone[i], kTolerance * alone[i]) << stages << ", step " << i;
  }
  shape.local_steps = 5;
  EXPECT_LT(RunReplicas(shape, corpus).losses.back(), alone.front());
}

// With a codec that loses something each rank adds its own part as it is, and owns other parts.
TEST(GptReplicas, BucketsChangeNoBit) {
  WorldShape shape = SmallGpt();
  shape.global_batch = 8;
  shape.replicas = {5, 3};
  shape.steps = 4;
  const TextCorpus corpus(GenerateText(4000, 1), shape.context, 20);
  for (const char* codec : {"none", "quant(4, token, symmetric)", "ef(lowrank(2))"}) {
    for (int stages : {1, 2}) {
      shape.gradients = codec;
      shape.stages = stages;
      shape.buckets = 1;
      const ReplicaRun whole = RunReplicas(shape, corpus);
      shape.buckets = 4;
      const ReplicaRun cut = RunReplicas(shape, corpus);
      EXPECT_EQ(cut.losses == whole.losses, shape.gradients == "none") << codec << ", " << stages;
      for (size_t i = 0; i < cut.losses.size(); ++i)
        EXPECT_NEAR(cut.losses[i], whole.losses[i], 0.01 * whole.losses[i]) << codec << i;
    }
  }
}

TEST(GptReplicas, WhatTheyExchangeMayBeCompressed) {
  WorldShape shape = SmallGpt();
  shape.stages = 1;
  shape.global_batch = 8;
  shape.replicas = {4, 4};
  shape.steps = 100;
  const TextCorpus corpus(GenerateText(8000, 1), shape.context, 20);
  const auto train = [&](const std::string& codec) {
    shape.gradients = codec;
    return RunReplicas(shape, corpus);
  };
  const ReplicaRun plain = train("none");
  const double last = MeanOfLast(plain.losses, 10);
  ASSERT_LT(last, 0.6 * plain.losses.front());
  for (const auto& [codec, ratio, loss] : {std::tuple{"bf16", 1.99, 0.005},
                                           {"quant(8, token, symmetric)", 3.9, 0.01},
                                           {"quant(4, token, symmetric)", 7.7, 0.02}}) {
    const ReplicaRun run = train(codec);
    EXPECT_GT(static_cast<double>(plain.group_bytes) / run.group_bytes, ratio) << codec;
    EXPECT_NEAR(MeanOfLast(run.losses, 10), last, loss * last) << codec;
    EXPECT_NE(run.losses, plain.losses) << codec << " changes nothing: it is not used";
  }
  // Too little of a gradient is worse, or the measure would see nothing.
  EXPECT_GT(MeanOfLast(train("topk(0.01)").losses, 10), 1.3 * last);
}

// PowerSGD (arXiv 1905.13727): a rank of 4 of matrices of 32 and more. F55: from the first step on.
TEST(GptReplicas, LowRankGradientsLearnAsWell) {
  WorldShape shape = SmallGpt();
  shape.stages = 2;
  shape.global_batch = 8;
  shape.replicas = {4, 4};
  shape.steps = 100;
  const TextCorpus corpus(GenerateText(8000, 1), shape.context, 20);
  const ReplicaRun plain = RunReplicas(shape, corpus);
  const double last = MeanOfLast(plain.losses, 10);
  shape.gradients = "ef(lowrank(4))";
  const ReplicaRun low = RunReplicas(shape, corpus);
  EXPECT_LT(MeanOfLast(low.losses, 10), 1.1 * last);
  EXPECT_LT(low.group_bytes, 0.6 * plain.group_bytes) << "the tied embedding goes as fp32";
  shape.gradients = "lowrank(1)";
  EXPECT_GT(MeanOfLast(RunReplicas(shape, corpus).losses, 10), MeanOfLast(low.losses, 10))
      << "the measure sees nothing";
}

// Algorithms, T2.6: none of the stages is exact, all of them with full rank is to 1e-5.
TEST(GptReplicas, GradientsOfNoStageAndOfAllWithFullRank) {
  WorldShape shape = SmallGpt();
  shape.stages = 2;
  shape.global_batch = 8;
  shape.replicas = {4, 4};
  shape.steps = 8;
  const TextCorpus corpus(GenerateText(4000, 1), shape.context, 20);
  const ReplicaRun plain = RunReplicas(shape, corpus);
  shape.gradients = "ef(lowrank(128))";
  shape.gradient_stages = 0;
  EXPECT_EQ(RunReplicas(shape, corpus).losses, plain.losses);
  shape.gradient_stages = 2;
  const ReplicaRun full = RunReplicas(shape, corpus);
  ASSERT_THAT(full.losses, SizeIs(plain.losses.size()));
  for (size_t i = 0; i < full.losses.size(); ++i)
    EXPECT_NEAR(full.losses[i], plain.losses[i], kTolerance * plain.losses[i]) << "step " << i;
  shape.gradients = "ef(lowrank(1))";
  shape.gradient_stages = 1;
  EXPECT_NE(RunReplicas(shape, corpus).losses, plain.losses);
}

// Local steps with an agreement now and then: about as good as gradients at every step, for a
// fraction of the bytes.
TEST(GptReplicas, LocalStepsLearnAsWell) {
  WorldShape shape = SmallGpt();
  shape.stages = 2;
  shape.global_batch = 8;
  shape.replicas = {4, 4};
  shape.steps = 100;
  const TextCorpus corpus(GenerateText(8000, 1), shape.context, 20);
  const ReplicaRun every = RunReplicas(shape, corpus);
  const double last = MeanOfLast(every.losses, 10);
  // Local SGD: the mean of the weights.
  shape.outer_learning_rate = 1;
  shape.outer_momentum = 0;
  shape.local_steps = 2;
  EXPECT_NEAR(MeanOfLast(RunReplicas(shape, corpus).losses, 10), last, 0.02 * last);
  shape.local_steps = 10;
  const ReplicaRun mean = RunReplicas(shape, corpus);
  EXPECT_LT(MeanOfLast(mean.losses, 10), 1.06 * last);
  shape.gradients = "quant(4, token, symmetric)";
  const ReplicaRun small = RunReplicas(shape, corpus);
  EXPECT_LT(MeanOfLast(small.losses, 10), 1.07 * last);
  EXPECT_NE(small.losses, mean.losses);
  // DiLoCo's Nesterov, with momentum for ten agreements.
  shape.outer_learning_rate = 0.7;
  shape.outer_momentum = 0.5;
  EXPECT_LT(MeanOfLast(RunReplicas(shape, corpus).losses, 10), 1.07 * last);
  shape.outer_learning_rate = 1e-6;
  EXPECT_GT(MeanOfLast(RunReplicas(shape, corpus).losses, 10), 1.3 * last)
      << "weights that go back to where they were learn nothing";
}

// Streaming DiLoCo (arXiv 2501.18512): fragments that cross while training goes on, and differences
// of few bits with error feedback, learn about as well (coordinator/REPLICAS.md has the figures).
TEST(GptReplicas, FragmentsOfFewBitsLearnAsWell) {
  WorldShape shape = SmallGpt();
  shape.stages = 1;
  shape.global_batch = 8;
  shape.replicas = {4, 4};
  shape.steps = 120;
  shape.local_steps = 12;
  shape.outer_learning_rate = 0.7;
  shape.outer_momentum = 0.5;
  const TextCorpus corpus(GenerateText(8000, 1), shape.context, 20);
  const auto train = [&](int fragments, int delay, const char* codec) {
    shape.fragments = fragments;
    shape.fragment_delay = delay;
    shape.gradients = codec;
    const ReplicaRun run = RunReplicas(shape, corpus);
    const double last = MeanOfLast(run.losses, 12);
    std::printf("%d fragments, delay %d, %-34s %.4f, %.2f MB\n", fragments, delay, codec, last,
                1e-6 * static_cast<double>(run.group_bytes));
    return last;
  };
  const double diloco = train(1, 0, "none");
  EXPECT_LT(train(4, 0, "none"), 1.03 * diloco);
  EXPECT_LT(train(4, 2, "none"), 1.05 * diloco);
  for (const char* codec : {"ef(quant(4, token, symmetric))", "ef(quant(3, token, symmetric))",
                            "ef(quant(2, token, symmetric))"}) {
    EXPECT_LT(train(1, 0, codec), 1.06 * diloco) << codec;
    EXPECT_LT(train(4, 2, codec), 1.08 * diloco) << codec;
  }
}

// F57 with the real engine: weights are read tensor by tensor; the embedding of both ends is one.
TEST(GptReplicas, OneOfAnotherSeedIsRefused) {
  WorldShape shape = SmallGpt();
  shape.steps = 4;
  shape.global_batch = 8;
  shape.replicas = {5, 3};
  shape.check_buffers = true;
  const TextCorpus corpus(GenerateText(4000, 1), shape.context, 20);
  for (const int stages : {1, 2}) {
    shape.stages = stages;
    RunReplicas(shape, corpus);  // of one seed: each step is compared
    MemoryStore store;
    World::Options options = GptOptions(&store, &corpus);
    options.make_stage = [](const Plan& plan, int rank) {
      Plan own = plan;
      if (plan.ranks(rank).replica() == 1) own.mutable_job()->set_seed(plan.job().seed() + 1);
      return GptStages()(own, rank);
    };
    World world(MakePlan(shape), options);
    for (const absl::Status& status : world.Run()) {
      EXPECT_THAT(status.message(), testing::HasSubstr("of replica 1 (")) << stages;
      EXPECT_THAT(status.message(), testing::HasSubstr("before step 0 are not those of")) << stages;
    }
  }
}

}  // namespace
}  // namespace isthmus::worker
