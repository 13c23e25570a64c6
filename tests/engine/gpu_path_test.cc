// What a stage does on a GPU (flat parameters, bf16 products, a head without a graph), on the CPU,
// and on a GPU where LibTorch finds one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/safetensors.h"
#include "tests/engine/pipeline.h"
#include "tests/worker/stage_files.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr int kSteps = 20;

EngineOptions OnCpu() { return EngineOptions(); }

class GpuPath : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto device = ParseDevice(GetParam()); !device.ok()) GTEST_SKIP() << device.status();
  }
  static EngineOptions OnGpu() { return EngineOptions{GetParam(), 1, true}; }
  static JobSpec Job(const std::string& precision) {
    JobSpec job = TinyJob();
    job.mutable_recipe()->set_precision(precision);
    return job;
  }
  static std::vector<double> Steps(Pipeline* pipeline, int steps = kSteps) {
    std::vector<double> losses;
    for (int s = 0; s < steps; ++s) losses.push_back(pipeline->Step(s));
    return losses;
  }
  static std::vector<float> Gradients(Pipeline* pipeline, int stage, GroupPlan::Tensors set) {
    std::vector<float> out(pipeline->stage(stage).Elements(set));
    EXPECT_TRUE(pipeline->stage(stage).ReadGradient(set, 0, absl::MakeSpan(out)).ok());
    return out;
  }
};

double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    squares += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / squares);
}

TEST_P(GpuPath, Fp32LearnsWhatTheCpuLearns) {
  Pipeline cpu(MakePlan(Job("fp32"), {4}));
  Pipeline one(MakePlan(Job("fp32"), {4}), {OnGpu()}),
      three(MakePlan(Job("fp32"), {1, 2, 1}), {OnGpu()});
  EXPECT_EQ(cpu.ExportWeights(), one.ExportWeights()) << "initial weights";
  EXPECT_NEAR(one.Loss(0) / cpu.Loss(0), 1.0, 1e-5);  // sums in another order
  const std::vector<double> a = Steps(&cpu), b = Steps(&one), c = Steps(&three);
  for (size_t i = 0; i < a.size(); ++i) {
    // AdamW divides by the root of the squares: what is rounded differently grows with the steps.
    EXPECT_NEAR(b[i] / a[i], 1.0, 1e-3) << "step " << i;
    EXPECT_NEAR(c[i] / a[i], 1.0, 1e-3) << "step " << i;
  }
}

TEST_P(GpuPath, GradientsAndNormAreTheCpus) {
  // Products in bf16 differ from processor to processor: up to 0.021 was seen.
  for (const auto& [precision, tolerance] :
       std::map<std::string, double>{{"fp32", 1e-5}, {"tf32", 5e-3}, {"bf16", 3e-2}}) {
    Pipeline cpu(MakePlan(Job(precision), {2, 2})),
        gpu(MakePlan(Job(precision), {2, 2}), {OnGpu()});
    for (Pipeline* p : {&cpu, &gpu}) p->Gradients(0);
    for (int stage : {0, 1}) {
      for (GroupPlan::Tensors set : {GroupPlan::TIED, GroupPlan::OWN}) {
        EXPECT_LT(Difference(Gradients(&gpu, stage, set), Gradients(&cpu, stage, set)), tolerance)
            << precision << ", stage " << stage;
      }
      EXPECT_NEAR(gpu.stage(stage).Norm().sum_squares / cpu.stage(stage).Norm().sum_squares, 1,
                  2 * tolerance)
          << precision;
      gpu.stage(stage).Discard();
      EXPECT_EQ(gpu.stage(stage).Norm().sum_squares, 0);
    }
  }
}

// Sums of bf16's roundings (2^-9 each) over the blocks: the losses stay close, and fall as fast.
TEST_P(GpuPath, Bf16Learns) {
  Pipeline cpu(MakePlan(Job("bf16"), {4})), gpu(MakePlan(Job("bf16"), {1, 3}), {OnGpu()});
  const std::vector<double> a = Steps(&cpu), b = Steps(&gpu);
  EXPECT_NE(a, b) << "a CPU computes in fp32";
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i] / a[i], 1.0, 2e-2) << "step " << i;
}

// Given the same gradient, whatever the devices and precisions of the two ends.
TEST_P(GpuPath, TiedEmbeddingsStayBitIdenticalWithOneEndOnACpu) {
  for (bool gpu_first : {false, true}) {
    std::vector<EngineOptions> ends = {OnCpu(), OnGpu()};
    if (gpu_first) std::swap(ends[0], ends[1]);
    Pipeline mixed(MakePlan(Job("bf16"), {2, 2}), ends);
    const std::vector<double> losses = Steps(&mixed);
    EXPECT_LT(losses.back(), losses.front() - 0.3);
    const std::string first = WeightsOf(mixed.stage(0));
    const std::string last = TiedOf(mixed.stage(1));
    const auto weights = ParseSafetensors(first).value();
    const auto tied = ParseSafetensors(last).value();
    const std::string name = "transformer.wte.weight";
    EXPECT_EQ(weights.at(name).data, tied.at(name).data);
    const std::string moments = OptimizerOf(mixed.stage(0));
    for (const char* moment : {".exp_avg", ".exp_avg_sq"})
      EXPECT_EQ(ParseSafetensors(moments).value().at(name + moment).data,
                tied.at(name + moment).data);
  }
}

TEST_P(GpuPath, CheckpointsMoveBetweenDevicesAndReachTheCopies) {
  Pipeline gpu(MakePlan(Job("bf16"), {2, 2}), {OnGpu()});
  Steps(&gpu, 5);
  Pipeline cpu(MakePlan(Job("bf16"), {1, 3})), back(MakePlan(Job("bf16"), {4}), {OnGpu()});
  back.Loss(0);  // its copies are those of the initial weights now
  cpu.Import(gpu.ExportWeights(), gpu.ExportOptimizer());
  EXPECT_EQ(cpu.ExportOptimizer(), gpu.ExportOptimizer());
  EXPECT_EQ(cpu.ExportWeights(), gpu.ExportWeights());
  back.Import(cpu.ExportWeights(), cpu.ExportOptimizer());
  EXPECT_NEAR(back.Loss(9) / gpu.Loss(9), 1.0, 1e-5);
}

TEST_P(GpuPath, AutoencodersAreTrained) {
  JobSpec job = Job("bf16");
  Plan plan = MakePlan(job, {2, 2});
  LinkPlan* link = plan.add_links();
  link->set_kind(LinkPlan::BOUNDARY);
  link->set_lower(0);
  link->set_upper(1);
  link->mutable_forward()->set_kind(CodecSpec::AUTOENCODER);
  link->mutable_forward()->set_channels(16);
  Pipeline cpu(plan), gpu(plan, {OnGpu()});
  const std::vector<double> a = Steps(&cpu), b = Steps(&gpu);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i] / a[i], 1.0, 2e-2) << "step " << i;
}

TEST_P(GpuPath, DeterministicRunsRepeatBitForBit) {
  JobSpec job = TinyJob(4, 128, 2, 64, 50);  // heads as wide as a card's fused attention takes them
  job.mutable_recipe()->set_precision("bf16");
  job.mutable_recipe()->set_deterministic(true);
  Pipeline once(MakePlan(job, {2, 2}), {OnGpu()}), again(MakePlan(job, {2, 2}), {OnGpu()});
  EXPECT_EQ(Steps(&once), Steps(&again));
  EXPECT_EQ(once.ExportWeights(), again.ExportWeights());
}

// With three micro-batches under way at a time, each from a graph once they are recorded.
TEST_P(GpuPath, RecomputingLearnsTheSame) {
  for (const auto& [precision, tolerance] : {std::pair("fp32", 1e-4), std::pair("bf16", 2e-2)}) {
    JobSpec job = TinyJob(4, 128, 2, 64, 50);
    job.mutable_recipe()->set_precision(precision);
    JobSpec again = job;
    again.mutable_recipe()->set_recompute(true);
    for (const std::vector<int>& cut : {std::vector<int>{4}, {2, 2}}) {
      Pipeline kept(MakePlan(job, cut), {OnGpu()}), recomputed(MakePlan(again, cut), {OnGpu()});
      const std::vector<double> a = Steps(&kept), b = Steps(&recomputed);
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(b[i] / a[i], 1.0, tolerance) << precision << ", step " << i;
    }
  }
}

TEST_P(GpuPath, AnUnknownPrecisionIsRefused) {
  EXPECT_EQ(MakeGpt2Stage(MakePlan(Job("fp8"), {4}), 0, OnGpu()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Cuda, ADeviceThatIsNotThereIsAnError) {
  EngineOptions options;
  options.device = "cuda:99";
  EXPECT_FALSE(MakeGpt2Stage(MakePlan(TinyJob(), {4}), 0, options).ok());
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuPath, ::testing::Values("cpu", "cuda:0"));

}  // namespace
}  // namespace isthmus::engine
