// Ranks on a GPU beside ranks on a CPU: over boundaries whose codecs work on the device at one end,
// both ends hold the same buffers, and the job learns what it learns on CPUs. Without a GPU, the
// paths of one in host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "tests/rank/gpt_world.h"
#include "worker/engine/device_lane.h"

namespace isthmus::worker {
namespace {

using engine::EngineOptions;

class GptDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto lane = engine::MakeDeviceLane(Gpu()); !lane.ok()) GTEST_SKIP() << lane.status();
  }
  static EngineOptions Gpu() { return EngineOptions{GetParam(), 1, true}; }
  static EngineOptions Cpu() { return EngineOptions{"cpu", 1, false}; }

  static GptRun Run(const WorldShape& shape, const std::vector<EngineOptions>& devices) {
    const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
    MemoryStore store;
    Plan plan = MakePlan(shape);
    plan.mutable_job()->mutable_recipe()->set_precision("fp32");
    return RunWorld(plan, GptOptions(&store, &corpus, devices));
  }
};

TEST_P(GptDevice, LearnsWhatCpusLearnWithEitherEndOnACpu) {
  WorldShape shape = SmallGpt();
  shape.eval_every = 10;
  shape.stages = 3;
  shape.tied = "bf16";
  for (const auto& [forward, backward, tolerance] :
       {std::tuple("none", "none", 1e-3), std::tuple("bf16", "bf16", 1e-3),
        std::tuple("delta(quant(4))", "quant(6)", 2e-2), std::tuple("topk(0.5)", "kept", 2e-2),
        std::tuple("delta(quant(4)) | zstd", "quant(8) | zstd", 2e-2)}) {
    shape.forward = forward;
    shape.backward = backward;
    shape.check_buffers = true;
    const GptRun cpu = Run(shape, {Cpu()});
    for (const std::vector<EngineOptions>& devices :
         {std::vector<EngineOptions>{Gpu()}, {Cpu(), Gpu(), Cpu()}, {Gpu(), Cpu(), Gpu()}}) {
      ::testing::internal::CaptureStderr();
      const GptRun run = Run(shape, devices);
      EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                  ::testing::Not(::testing::HasSubstr("works on the host")))
          << forward << " / " << backward;
      ASSERT_EQ(run.losses.size(), cpu.losses.size());
      for (size_t i = 0; i < run.losses.size(); ++i)
        EXPECT_NEAR(run.losses[i] / cpu.losses[i], 1, tolerance) << forward << ", step " << i;
      ASSERT_EQ(run.validation.size(), cpu.validation.size());
      for (size_t i = 0; i < run.validation.size(); ++i)
        EXPECT_NEAR(run.validation[i] / cpu.validation[i], 1, tolerance)
            << forward << ", pass " << i;
    }
  }
}

// A tied embedding that is exchanged in parts, with a device at both ends and at one: what one
// stage learns.
TEST_P(GptDevice, ALargeTiedEmbeddingInParts) {
  WorldShape shape = SmallGpt();
  shape.vocabulary = 90000;
  shape.hidden = 64;
  shape.steps = 2;
  shape.stages = 1;
  const GptRun one = Run(shape, {Cpu()});
  shape.stages = 2;
  ASSERT_GT(MakePlan(shape).groups_size(), 1);
  EXPECT_EQ(SetName(MakePlan(shape).groups(1)), kTiedGroup);
  for (const std::vector<EngineOptions>& devices :
       {std::vector<EngineOptions>{Gpu()}, {Cpu(), Gpu()}}) {
    const GptRun run = Run(shape, devices);
    ASSERT_EQ(run.losses.size(), one.losses.size());
    for (size_t i = 0; i < run.losses.size(); ++i)
      EXPECT_NEAR(run.losses[i] / one.losses[i], 1, 1e-3) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GptDevice, ::testing::Values("cpu", "cuda:0"));

}  // namespace
}  // namespace isthmus::worker
