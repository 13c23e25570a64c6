// Stages on a GPU do what stages on the CPU do. Skipped where LibTorch finds none.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/pipeline.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr char kDevice[] = "cuda:0";
constexpr int kSteps = 20;

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = ParseDevice(kDevice); !device.ok()) GTEST_SKIP() << device.status();
  }
  static std::vector<double> Steps(Pipeline* pipeline, int first, int steps) {
    std::vector<double> losses;
    for (int s = first; s < first + steps; ++s) losses.push_back(pipeline->Step(s));
    return losses;
  }
};

TEST_F(Cuda, LearnsWhatTheCpuLearns) {
  Pipeline cpu(MakePlan(TinyJob(), {4})), gpu(MakePlan(TinyJob(), {1, 2, 1}), 1, kDevice);
  EXPECT_EQ(cpu.ExportWeights(), gpu.ExportWeights()) << "initial weights";
  EXPECT_NEAR(gpu.Loss(0) / cpu.Loss(0), 1.0, 1e-5);  // sums in another order
  const std::vector<double> a = Steps(&cpu, 0, kSteps), b = Steps(&gpu, 0, kSteps);
  // AdamW divides by the root of the squares: what is rounded differently grows with the steps.
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i] / a[i], 1.0, 1e-3) << "step " << i;
  EXPECT_LT(b.back(), b.front() - 0.3);
}

TEST_F(Cuda, RunsRepeatBitForBit) {
  Pipeline once(MakePlan(TinyJob(), {2, 2}), 1, kDevice);
  Pipeline again(MakePlan(TinyJob(), {2, 2}), 1, kDevice);
  EXPECT_EQ(Steps(&once, 0, kSteps), Steps(&again, 0, kSteps));
  EXPECT_EQ(once.ExportWeights(), again.ExportWeights());
}

TEST_F(Cuda, CheckpointsMoveBetweenDevices) {
  Pipeline gpu(MakePlan(TinyJob(), {2, 2}), 1, kDevice);
  Steps(&gpu, 0, 5);
  Pipeline cpu(MakePlan(TinyJob(), {1, 3})), back(MakePlan(TinyJob(), {4}), 1, kDevice);
  cpu.Import(gpu.ExportWeights(), gpu.ExportOptimizer());
  EXPECT_EQ(cpu.ExportOptimizer(), gpu.ExportOptimizer());
  back.Import(cpu.ExportWeights(), cpu.ExportOptimizer());
  const std::vector<double> on = Steps(&gpu, 5, 3);
  const std::vector<double> there = Steps(&cpu, 5, 3), here = Steps(&back, 5, 3);
  for (size_t i = 0; i < on.size(); ++i) {
    EXPECT_NEAR(there[i] / on[i], 1.0, 1e-4) << i;
    EXPECT_NEAR(here[i] / on[i], 1.0, 1e-4) << i;
  }
}

TEST_F(Cuda, ADeviceThatIsNotThereIsAnError) {
  EngineOptions options;
  options.device = "cuda:99";
  EXPECT_FALSE(MakeGpt2Stage(MakePlan(TinyJob(), {4}), 0, options).ok());
}

}  // namespace
}  // namespace isthmus::engine
