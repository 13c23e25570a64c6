// What activation-delta compression promises (AQ-SGD, section 4): trained over several epochs of a
// small text, a GPT ends where the one without compression ends at 3 bits forward and 6 backward,
// and better than by direct quantisation at 2 and 4. Real sessions over links in memory; one seed,
// or three where ISTHMUS_LONG is set (minutes). The text is the project's licence: there is always
// one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "tests/worker/world.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::worker {
namespace {

constexpr int kEpochs = 12;

// Mean training loss of the last epoch.
double Train(int seed, const std::string& forward, const std::string& backward) {
  WorldShape shape;
  shape.stages = 3;
  shape.layers = 3;
  shape.hidden = 48;
  shape.heads = 3;
  shape.context = 32;
  shape.vocabulary = 256;
  shape.global_batch = 16;
  shape.micro_batch = 8;
  shape.learning_rate = 1.5e-3;
  shape.seed = static_cast<uint64_t>(seed);
  shape.forward = forward;
  shape.backward = backward;
  shape.check_buffers = true;
  shape.buffer_memory_bytes = 64 << 20;
  Plan plan = MakePlan(shape);
  plan.mutable_job()->mutable_data()->set_path("LICENSE");
  const auto corpus = OpenCorpus(ISTHMUS_SOURCE_DIR, plan.job());
  if (!corpus.ok()) {
    ADD_FAILURE() << corpus.status();
    return 0;
  }
  const int64_t epoch = (*corpus)->train_samples() / shape.global_batch;
  shape.steps = static_cast<int>(kEpochs * epoch);
  plan = MakePlan(shape);
  plan.mutable_job()->mutable_data()->set_path("LICENSE");
  World::Options options;
  options.corpus = corpus->get();
  options.make_stage = [](const Plan& p, int stage) {
    engine::EngineOptions one_thread;
    one_thread.threads = 1;
    return engine::MakeGpt2Stage(p, stage, one_thread);
  };
  World world(plan, options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  const std::vector<double> losses = world.last().losses();
  EXPECT_EQ(static_cast<int>(losses.size()), shape.steps);
  return std::accumulate(losses.end() - epoch, losses.end(), 0.0) / static_cast<double>(epoch);
}

// Two runs of a model this small that differ by a rounding end up to 1 % apart (at a learning rate
// of 4e-3: 3 %). So each seed is held to 2 %, and the mean of three to the 1 % that is
// promised.
TEST(AqSgd, EndsWhereTheUncompressedRunEnds) {
  const int seeds = std::getenv("ISTHMUS_LONG") != nullptr ? 3 : 1;
  double delta3_excess = 0, delta4_excess = 0, buffer8_excess = 0, direct3_excess = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const double exact = Train(seed, "none", "none");
    const double delta2 = Train(seed, "delta(quant(2))", "quant(4)");
    const double direct2 = Train(seed, "quant(2)", "quant(4)");
    const double delta3 = Train(seed, "delta(quant(3))", "quant(6)");
    const double delta4 = Train(seed, "delta(quant(4))", "quant(8)");
    const double direct3 = Train(seed, "quant(3)", "quant(6)");
    const double buffer4 = Train(seed, "delta(quant(2), buffer=4)", "quant(4)");
    const double buffer8 = Train(seed, "delta(quant(3), buffer=8)", "quant(6)");
    std::printf(
        "seed %d: fp32 %.4f; fw2bw4: delta %.4f, buffer=4 %.4f, direct %.4f; fw3bw6: delta %.4f, "
        "buffer=8 %.4f, direct %.4f; fw4bw8: delta %.4f\n",
        seed, exact, delta2, buffer4, direct2, delta3, buffer8, direct3, delta4);
    EXPECT_LT(delta2, direct2) << "seed " << seed;
    EXPECT_LT(delta3 / exact, 1.02) << "seed " << seed;
    EXPECT_LT(delta4 / exact, 1.02) << "seed " << seed;
    // Buffers that are quantised themselves ("delta-lowbits").
    EXPECT_LT(buffer4, direct2) << "seed " << seed;
    EXPECT_LT(buffer8 / exact, 1.02) << "seed " << seed;
    buffer8_excess += (buffer8 / exact - 1) / seeds;
    direct3_excess += (direct3 / exact - 1) / seeds;
    delta3_excess += (delta3 / exact - 1) / seeds;
    delta4_excess += (delta4 / exact - 1) / seeds;
  }
  EXPECT_LT(buffer8_excess, direct3_excess);
  if (seeds == 1) return;
  EXPECT_LT(delta3_excess, 0.01);
  EXPECT_LT(delta4_excess, 0.01);
  EXPECT_LT(buffer8_excess, 0.01);
}

}  // namespace
}  // namespace isthmus::worker
