// The promise of the pipeline, with the real engine: however the model is cut, it learns what one
// process learns; and AQ-SGD learns what fp32 learns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/rank/gpt_world.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/stage_watch.h"

namespace isthmus::worker {
namespace {

using ::testing::SizeIs;

// Sums of fp32 gradients and of norms are grouped differently by each cut; nothing else differs.
constexpr double kCutTolerance = 1e-5;

void ExpectClose(const std::vector<double>& a, const std::vector<double>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], kCutTolerance * b[i]) << what << ", step " << i;
}

TEST(GptRank, AnyCutAndScheduleEqualsOneProcess) {
  WorldShape shape = SmallGpt();
  shape.eval_every = 10;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  shape.stages = 1;
  const GptRun one = RunGpt(shape, corpus);
  ASSERT_THAT(one.losses, SizeIs(20));
  EXPECT_NEAR(one.losses.front(), std::log(256), 0.3);
  EXPECT_LT(one.losses.back(), 0.8 * one.losses.front());
  for (int stages : {1, 2, 4}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      shape.stages = stages;
      shape.schedule = schedule;
      const std::string what = std::to_string(stages) + " stages, " + schedule;
      const GptRun run = RunGpt(shape, corpus);
      ExpectClose(run.losses, one.losses, what);
      ExpectClose(run.validation, one.validation, what);
      const GptRun again = RunGpt(shape, corpus);
      EXPECT_EQ(again.losses, run.losses) << what;
      EXPECT_EQ(again.weights, run.weights) << what;
    }
  }
}

// T11.2 and F56 with the real engine (session_local_test.cc has more cases).
TEST(GptRank, AGroupOfOneIsARunWithoutReplicas) {
  WorldShape shape = SmallGpt();
  shape.steps = 7;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  const GptRun plain = RunGpt(shape, corpus);
  shape.replicas = {7};
  shape.local_steps = 3;
  const GptRun one = RunGpt(shape, corpus);
  EXPECT_EQ(one.losses, plain.losses);
  EXPECT_EQ(one.weights, plain.weights);
}

TEST(GptRank, AHeadOfItsOwnAnyCutEqualsOneProcessAndResumes) {
  WorldShape shape = SmallGpt();
  shape.tied_head = false;
  shape.checkpoint_every = 10;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  shape.stages = 1;
  const GptRun one = RunGpt(shape, corpus);
  EXPECT_LT(one.losses.back(), 0.8 * one.losses.front());
  for (int stages : {2, 4}) {
    shape.stages = stages;
    MemoryStore store;
    const World::Options options = GptOptions(&store, &corpus);
    ASSERT_EQ(MakePlan(shape).groups_size(), 0);
    ExpectClose(RunWorld(MakePlan(shape), options).losses, one.losses, std::to_string(stages));
    World again(MakePlan(shape, 2, 10), options);
    for (const absl::Status& status : again.Run()) ASSERT_TRUE(status.ok()) << status;
    ExpectClose(again.last().losses(), {one.losses.begin() + 10, one.losses.end()}, "resumed");
  }
  shape.stages = 2;
  shape.schedule = "overlap";
  EXPECT_LT(RunGpt(shape, corpus).losses.back(), 0.8 * one.losses.front());
}

// compression.tied, of two ends: what codecs leave of the gradient is learnt from as well, and a
// resume takes up the residuals.
TEST(GptRank, TheTiedGradientTakesAnyCodecOfGroups) {
  WorldShape shape = SmallGpt();
  shape.stages = 2;
  shape.steps = 60;
  shape.constant_rate = true;
  shape.checkpoint_every = 20;
  const TextCorpus corpus(GenerateText(4000, 1), shape.context, 20);
  const GptRun plain = RunGpt(shape, corpus);
  const double last = MeanOfLast(plain.losses, 6);
  for (const char* codec :
       {"quant(8, token, symmetric)", "ef(quant(4, token, symmetric))", "ef(lowrank(4))"}) {
    shape.tied = codec;
    MemoryStore store;
    MemoryStates states;
    World::Options options = GptOptions(&store, &corpus);
    options.codec_states = &states;
    const GptRun whole = RunWorld(MakePlan(shape), options);
    EXPECT_NE(whole.losses, plain.losses) << codec << " changes nothing: it is not used";
    EXPECT_LT(MeanOfLast(whole.losses, 6), 1.02 * last) << codec;
    WorldShape first = shape;
    first.steps = 20;
    MemoryStore other;
    MemoryStates other_states;
    options = GptOptions(&other, &corpus);
    options.codec_states = &other_states;
    RunWorld(MakePlan(first), options);
    const GptRun rest = RunWorld(MakePlan(shape, 2, 20), options);
    ASSERT_THAT(rest.losses, SizeIs(40)) << codec;
    for (int i = 0; i < 40; ++i) EXPECT_EQ(rest.losses[i], whole.losses[20 + i]) << codec << i;
  }
}

TEST(GptRank, ResumesOnAnotherCut) {
  WorldShape shape = SmallGpt();
  shape.checkpoint_every = 10;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  MemoryStore store;
  World::Options options = GptOptions(&store, &corpus);
  World whole(MakePlan(shape), options);
  for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
  const std::vector<double> losses = whole.last().losses();
  for (int stages : {2, 1, 4}) {
    shape.stages = stages;
    MemoryStore copy = store;
    options.store = &copy;
    World again(MakePlan(shape, 2, 10), options);
    for (const absl::Status& status : again.Run()) ASSERT_TRUE(status.ok()) << status;
    const std::vector<double> rest(losses.begin() + 10, losses.end());
    if (stages == 2) {
      EXPECT_EQ(again.last().losses(), rest);
    } else {
      ExpectClose(again.last().losses(), rest, std::to_string(stages) + " stages");
    }
  }
}

// An autoencoder is a part of the model: the session trains it, counts its bytes both ways, and
// resumes with it; where the cut moved, it starts anew.
TEST(GptRank, AutoencodersLearnAndResume) {
  WorldShape shape = SmallGpt();
  shape.steps = 60;
  shape.checkpoint_every = 30;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  const GptRun plain = RunGpt(shape, corpus);
  shape.forward = "autoencoder(8, values=bf16)";
  shape.backward = "bf16";
  MemoryStore store;
  World::Options options = GptOptions(&store, &corpus);
  World whole(MakePlan(shape), options);
  for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
  const std::vector<double> losses = whole.last().losses();
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  int64_t wire = 0, raw = 0;
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const StepRecord& r : whole.observer(stage).records()) {
      for (const DirectionBytes& d : r.directions()) {
        if (d.link_id() == "tied") continue;
        wire += d.wire_bytes();
        raw += d.raw_bytes();
      }
    }
  }
  // 32 channels of fp32 as 8 of bf16, both ways; small frames have headers as large as themselves.
  EXPECT_GT(plain.wire_bytes, raw);
  EXPECT_LT(wire, raw / 4);
  for (int stages : {2, 4}) {
    shape.stages = stages;
    MemoryStore copy = store;
    options.store = &copy;
    World again(MakePlan(shape, 2, 30), options);
    for (const absl::Status& status : again.Run()) ASSERT_TRUE(status.ok()) << status;
    if (stages == 2) {
      EXPECT_EQ(again.last().losses(), std::vector<double>(losses.begin() + 30, losses.end()));
    } else {
      EXPECT_LT(again.last().losses().back(), 0.9 * losses.front());
    }
  }
}

// T3.3 and T3.5 with the real engine: a gradient comes back where the activation was sent, all of
// it with K = numel, and unchanged where only the forward direction has a codec.
TEST(GptRank, GradientsComeBackAtTheIndicesThatWereSent) {
  WorldShape shape = SmallGpt();
  shape.stages = 3;
  shape.steps = 4;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  shape.forward = "topk(1)";
  const GptRun dense = RunGpt(shape, corpus);
  shape.backward = "kept";
  const GptRun all = RunGpt(shape, corpus);
  EXPECT_EQ(all.losses, dense.losses);
  EXPECT_EQ(all.weights, dense.weights);
  for (const auto& [forward, backward] : {std::pair{"topk(0.25, values=none)", "kept"},
                                          {"topk(0.25, values=none)", "none"},
                                          {"quant(2)", "none"},
                                          {"lowrank(4)", "none"}}) {
    shape.forward = forward;
    shape.backward = backward;
    const bool kept = shape.backward == "kept";
    MemoryStore store;
    World::Options options = GptOptions(&store, &corpus);
    StageWatch watch;
    options.make_stage = watch.Around(options.make_stage);
    World world(MakePlan(shape), options);
    for (const absl::Status& status : world.Run()) ASSERT_TRUE(status.ok()) << status;
    ASSERT_THAT(watch.passages(), SizeIs(2 * shape.steps * 4));
    for (const auto& [key, p] : watch.passages()) {
      std::vector<float> want = p.gradient_above.data;
      size_t sent = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        sent += p.activation.data[i] != 0;
        if (kept && p.activation.data[i] == 0) want[i] = 0;
      }
      if (kept) {
        EXPECT_EQ(sent, want.size() / 4);
      }
      EXPECT_EQ(p.gradient_received.data, want) << forward << " / " << backward;
    }
  }
}

// Forty epochs over a small text; the figure is the mean loss of the last two epochs.
// tests/bench/convergence_bench is the long form, with every codec and several seeds.
TEST(GptRank, ActivationDeltasLearnWhatFp32Learns) {
  WorldShape shape = SmallGpt();
  shape.stages = shape.layers = 3;
  shape.context = 32;
  shape.global_batch = 16;
  shape.micro_batch = 8;
  shape.steps = 160;
  shape.learning_rate = 1e-3;
  shape.eval_samples = 0;
  const TextCorpus corpus(GenerateText(64 * 32 + 1, 1), shape.context, 0);  // 4 steps an epoch
  const auto loss = [&](const char* forward, const char* backward) {
    shape.forward = forward;
    shape.backward = backward;
    shape.check_buffers = true;
    return MeanOfLast(RunGpt(shape, corpus).losses, 8);
  };
  const double fp32 = loss("none", "none");
  const double direct = loss("quant(2)", "quant(4)");
  const double fw2bw4 = loss("delta(quant(2))", "quant(4)");
  const double fw3bw6 = loss("delta(quant(3))", "quant(6)");
  const double fw4bw8 = loss("delta(quant(4))", "quant(8)");
  const auto percent = [&](double x) { return 100 * (x / fp32 - 1); };
  std::printf(
      "fp32 %.4f; direct fw2bw4 %+.2f %%; delta fw2bw4 %+.2f %%, fw3bw6 %+.2f %%, fw4bw8 %+.2f "
      "%%\n",
      fp32, percent(direct), percent(fw2bw4), percent(fw3bw6), percent(fw4bw8));
  EXPECT_LT(fw2bw4, direct);
  EXPECT_LT(fw3bw6, 1.01 * fp32);
  EXPECT_LT(fw4bw8, 1.01 * fp32);
}

}  // namespace
}  // namespace isthmus::worker
