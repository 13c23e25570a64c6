#include "worker/engine/gpt2_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/safetensors.h"
#include "proto/model/model_cost.h"
#include "tests/engine/pipeline.h"
#include "tests/worker/stage_files.h"
#include "worker/engine/micro_check.h"
#include "worker/engine/parameters.h"

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;
using worker::MicroBatch;
using worker::Tensor;

std::vector<double> Losses(const std::vector<int>& cut, bool interleaved, int steps = 20) {
  Pipeline pipeline(MakePlan(TinyJob(), cut));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) losses.push_back(pipeline.Step(step, interleaved));
  return losses;
}

std::map<std::string, std::vector<float>> Floats(const std::string& safetensors) {
  std::map<std::string, std::vector<float>> out;
  const auto parsed = ParseSafetensors(safetensors).value();
  for (const auto& [name, entry] : parsed) out[name] = ToFloats(entry).value();
  return out;
}

// The same tensors, all zero.
std::string Zeroed(std::string safetensors) {
  const auto parsed = ParseSafetensors(safetensors).value();
  for (const auto& [name, entry] : parsed) {
    std::memset(safetensors.data() + (entry.data.data() - safetensors.data()), 0,
                entry.data.size());
  }
  return safetensors;
}

TEST(Gpt2Stage, AnyCutGivesTheLossesOfOneProcess) {
  const std::vector<double> one = Losses({4}, false);
  EXPECT_NEAR(one.front(), std::log(50.0), 0.1);  // 50 ids, nothing learned yet
  EXPECT_LT(one.back(), one.front() - 0.3);
  for (const std::vector<int>& cut : {std::vector<int>{1, 3}, {2, 2}, {1, 1, 2}, {1, 1, 1, 1}}) {
    for (bool interleaved : {false, true}) {
      const std::vector<double> losses = Losses(cut, interleaved);
      EXPECT_EQ(losses.front(), one.front());  // forward passes are the same operations
      for (size_t i = 0; i < one.size(); ++i) {
        // Only the sum of the two halves of the tied gradient is rounded in another order.
        EXPECT_NEAR(losses[i] / one[i], 1.0, 1e-5) << "stages " << cut.size() << ", step " << i;
      }
    }
  }
}

// Blocks in the middle and the head: the same weights, another function.
TEST(Gpt2Stage, TheJobsNormEpsilonIsTrained) {
  JobSpec job = TinyJob();
  Pipeline usual(MakePlan(job, {2, 2}));
  job.mutable_model()->set_norm_epsilon(1e-5);
  Pipeline same(MakePlan(job, {2, 2}));
  job.mutable_model()->set_norm_epsilon(1e-2);
  Pipeline other(MakePlan(job, {2, 2}));
  EXPECT_EQ(usual.ExportWeights(), other.ExportWeights());
  EXPECT_EQ(usual.Loss(0), same.Loss(0));
  EXPECT_NE(usual.Loss(0), other.Loss(0));
}

TEST(Gpt2Stage, RunsRepeatBitForBitAndSchedulesAgree) {
  const std::vector<double> first = Losses({1, 3}, false);
  EXPECT_EQ(first, Losses({1, 3}, false));
  EXPECT_EQ(first, Losses({1, 3}, true));
}

TEST(Gpt2Stage, ThreadsDoNotChangeTheInitialWeights) {
  Pipeline one(MakePlan(TinyJob(), {4}), 1), two(MakePlan(TinyJob(), {2, 2}), 2);
  EXPECT_EQ(one.ExportWeights(), two.ExportWeights());
}

// Directional derivative along the gradient of each tensor: |g| to 1 %. fp32 losses carry about
// 1e-6, the step changes them by 1e-3.
TEST(Gpt2Stage, GradientsMatchFiniteDifferences) {
  for (const std::vector<int>& cut : {std::vector<int>{2}, {1, 1}}) {
    JobSpec job = TinyJob(2, 16, 2, 8, 20);
    job.mutable_recipe()->set_clip_norm(0);
    Pipeline pipeline(MakePlan(job, cut));
    for (int step = 0; step < 5; ++step) pipeline.Step(step);  // away from the symmetric start
    const std::string weights = pipeline.ExportWeights();
    const std::string zeros = Zeroed(pipeline.ExportOptimizer());
    pipeline.Import("", zeros);
    pipeline.Gradients(7);
    pipeline.Apply(0,
                   0);  // learning rate 0: exp_avg becomes (1 - beta1) x gradient, the weights stay
    ASSERT_EQ(pipeline.ExportWeights(), weights);
    const auto averages = Floats(pipeline.ExportOptimizer());

    const auto parsed = ParseSafetensors(weights).value();
    int checked = 0;
    for (const auto& [name, entry] : parsed) {
      std::vector<float> g = averages.at(name + ".exp_avg");
      double norm = 0;
      for (float& x : g) {
        x /= 1 - job.recipe().beta1();
        norm += static_cast<double>(x) * x;
      }
      norm = std::sqrt(norm);
      if (norm < 0.01) continue;  // keys' biases have no gradient at all
      ++checked;
      double losses[2];
      const double h = 0.01;
      for (int side = 0; side < 2; ++side) {
        std::string moved = weights;
        float* at = reinterpret_cast<float*>(moved.data() + (entry.data.data() - weights.data()));
        for (size_t i = 0; i < g.size(); ++i)
          at[i] += static_cast<float>((side == 0 ? h : -h) * g[i] / norm);
        pipeline.Import(moved, "");
        losses[side] = pipeline.Loss(7);
      }
      EXPECT_NEAR((losses[0] - losses[1]) / (2 * h) / norm, 1.0, 0.01) << name << " |g| " << norm;
    }
    EXPECT_GE(checked, 15);
  }
}

JobSpec UntiedJob() {
  JobSpec job = TinyJob();
  job.mutable_model()->set_tied(false);
  return job;
}

// Decay and norm count the head's weights once, on the stage that has them.
TEST(Gpt2Stage, AHeadOfItsOwnAnyCutEqualsOneProcess) {
  Pipeline one(MakePlan(UntiedJob(), {4})), tied(MakePlan(TinyJob(), {4}));
  std::vector<double> losses;
  for (int step = 0; step < 8; ++step) losses.push_back(one.Step(step));
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_NE(losses.front(), tied.Step(0));
  for (const std::vector<int>& cut : {std::vector<int>{1, 3}, {2, 1, 1}}) {
    Pipeline many(MakePlan(UntiedJob(), cut));
    for (int i = 0; i < many.size(); ++i)
      EXPECT_EQ(many.stage(i).Elements(GroupPlan::TIED), 0) << "nothing is exchanged";
    EXPECT_TRUE(TiedOf(many.stage(many.size() - 1)).empty());
    for (int step = 0; step < 8; ++step)
      EXPECT_NEAR(many.Step(step), losses[step], 1e-5 * losses[step]) << "step " << step;
    const auto weights = Floats(many.ExportWeights()), same = Floats(one.ExportWeights());
    ASSERT_EQ(weights.size(), same.size());
    EXPECT_EQ(weights.count("lm_head.weight"), 1u);
    for (const auto& [name, values] : weights) {
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], same.at(name)[i], 2e-4) << name << " " << i;
    }
  }
}

TEST(Gpt2Stage, AHeadOfItsOwnGoesOnBitForBitUnderAnotherCut) {
  Pipeline a(MakePlan(UntiedJob(), {4}));
  for (int step = 0; step < 5; ++step) a.Step(step);
  const std::string weights = a.ExportWeights(), optimizer = a.ExportOptimizer();
  Pipeline same(MakePlan(UntiedJob(), {4})), other(MakePlan(UntiedJob(), {2, 2}));
  same.Import(weights, optimizer);
  other.Import(weights, optimizer);
  EXPECT_EQ(other.ExportWeights(), weights);
  EXPECT_EQ(other.ExportOptimizer(), optimizer);
  const double loss = a.Step(5);
  EXPECT_EQ(same.Step(5), loss);
  EXPECT_NEAR(other.Step(5), loss, 1e-5 * loss);
  EXPECT_EQ(same.ExportWeights(), a.ExportWeights());
}

TEST(Gpt2Stage, AHeadOfItsOwnOnAGpu) {
  Pipeline cpu(MakePlan(UntiedJob(), {2, 2}));
  JobSpec job = UntiedJob();
  job.mutable_recipe()->set_precision("fp32");
  Pipeline gpu(MakePlan(job, {2, 2}), {EngineOptions{"cpu", 1, true}});
  for (int step = 0; step < 5; ++step) {
    const double loss = cpu.Step(step);
    EXPECT_NEAR(gpu.Step(step), loss, 1e-5 * loss) << "step " << step;
  }
}

// quantized_adam after its warm-up, in loops and in operators.
TEST(Gpt2Stage, AFrozenSecondMomentStays) {
  JobSpec job = TinyJob();
  job.mutable_recipe()->set_precision("fp32");
  Pipeline cpu(MakePlan(job, {4})), gpu(MakePlan(job, {4}), {EngineOptions{"cpu", 1, true}});
  for (Pipeline* p : {&cpu, &gpu}) {
    for (int step = 0; step < 3; ++step) p->Step(step);
    const auto before = Floats(p->ExportOptimizer());
    std::vector<float> gradient(p->stage(0).Elements(GroupPlan::OWN)), moment(gradient.size());
    p->Gradients(3);
    ASSERT_TRUE(p->stage(0).ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(gradient)).ok());
    ASSERT_TRUE(p->stage(0).TakeMomentum(GroupPlan::OWN, 0, gradient.size(), 1).ok());
    ASSERT_TRUE(p->stage(0).ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(moment)).ok());
    const std::vector<float>& wte = before.at("transformer.wte.weight.exp_avg");  // comes first
    for (size_t i = 0; i < wte.size(); ++i)
      ASSERT_NEAR(moment[i], 0.9 * wte[i] + 0.1 * gradient[i], 1e-6) << i;
    worker::OptimizerStep step;
    step.step = 4;
    step.learning_rate = 1e-3;
    step.gradient_scale = 0.5;
    step.frozen_after = 3;
    ASSERT_TRUE(p->stage(0).Apply(step).ok());
    const auto after = Floats(p->ExportOptimizer());
    EXPECT_EQ(after.at("transformer.wte.weight.exp_avg")[7], 0.5f * moment[7]);
    for (const auto& [name, values] : before) {
      if (name.find("exp_avg_sq") != std::string::npos) {
        EXPECT_EQ(after.at(name), values) << name;
      }
    }
  }
  EXPECT_NEAR(cpu.Loss(4), gpu.Loss(4), 1e-5);
}

TEST(Gpt2Stage, CheckpointGoesOnBitForBitAlsoUnderAnotherCut) {
  Pipeline a(MakePlan(TinyJob(), {1, 3}));
  for (int step = 0; step < 5; ++step) a.Step(step);
  const std::string weights = a.ExportWeights(), optimizer = a.ExportOptimizer();
  Pipeline same(MakePlan(TinyJob(), {1, 3})), other(MakePlan(TinyJob(), {2, 1, 1}));
  same.Import(weights, optimizer);
  other.Import(weights, optimizer);
  EXPECT_EQ(same.ExportWeights(), weights);
  EXPECT_EQ(same.ExportOptimizer(), optimizer);
  EXPECT_EQ(other.ExportWeights(), weights);
  EXPECT_EQ(other.ExportOptimizer(), optimizer);
  for (int step = 5; step < 8; ++step) {
    const double loss = a.Step(step);
    EXPECT_EQ(same.Step(step), loss);
    EXPECT_EQ(other.Step(step), loss);  // first and last stage hold the tied halves in both cuts
  }
  EXPECT_EQ(same.ExportWeights(), a.ExportWeights());
}

TEST(Gpt2Stage, TheTiedCopyOfTheLastStageStaysEqual) {
  Pipeline trained(MakePlan(TinyJob(), {1, 3})), fresh(MakePlan(TinyJob(), {1, 3}));
  for (int step = 0; step < 5; ++step) trained.Step(step);
  fresh.Import(trained.ExportWeights(), "");  // its last stage takes the first stage's embedding
  EXPECT_EQ(trained.Loss(9), fresh.Loss(9));
}

TEST(Gpt2Stage, NamesAndOwnersOfTensors) {
  Pipeline p(MakePlan(TinyJob(3), {1, 2}));
  const auto names = [&](int stage) {
    std::vector<std::string> names;
    for (const worker::StageTensor& t : p.stage(stage).Tensors()) names.push_back(t.name);
    return names;
  };
  const std::vector<std::string> first = names(0), last = names(1);
  EXPECT_THAT(first, ::testing::Contains("transformer.h.0.attn.c_attn.weight"));
  EXPECT_THAT(first, ::testing::Contains("transformer.wte.weight"));
  EXPECT_THAT(last, ::testing::Contains("transformer.wte.weight"));
  EXPECT_THAT(last, ::testing::Contains("transformer.ln_f.bias"));
  const std::string exported = WeightsOf(p.stage(1));
  EXPECT_EQ(ParseSafetensors(exported)->count("transformer.wte.weight"), 0u);
  EXPECT_EQ(WeightsOf(p.stage(0)).find("transformer.h.1."), std::string::npos);
  const std::string tied = TiedOf(p.stage(1));
  EXPECT_EQ(ParseSafetensors(tied)->size(), 3u) << "the embedding and its two moments";
  EXPECT_EQ(ParseSafetensors(tied)->count("transformer.wte.weight"), 1u);
  EXPECT_EQ(TiedOf(p.stage(0)), "");
  for (int s = 0; s < 2; ++s) {  // of a checkpoint: three of the four copies in StageMemoryBytes
    worker::Stage& stage = p.stage(s);
    const size_t held = WeightsOf(stage).size() + OptimizerOf(stage).size() + TiedOf(stage).size();
    const PartCost cost = StageCost(TinyJob(3).model(), s == 0 ? 0 : 1, s == 0 ? 1 : 3, 1);
    EXPECT_LE(held, 12 * cost.parameters + 16384) << "headers of the files";
  }
}

// `transformers` saves the bare model without the prefix and old files with buffers of the
// attention mask.
TEST(Gpt2Stage, ImportsWithoutPrefixAndInHalfPrecision) {
  Pipeline source(MakePlan(TinyJob(), {4}));
  source.Step(0);
  const std::string weights = source.ExportWeights();
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    std::vector<SafetensorsItem> items = {{"h.0.attn.bias", "BOOL", {1}, "x"},
                                          {"lm_head.weight", "F32", {1}, "1234"}};
    std::vector<std::string> storage;
    const auto parsed = ParseSafetensors(weights).value();
    storage.reserve(parsed.size());
    std::map<std::string, std::vector<float>> expected;
    for (const auto& [name, entry] : parsed) {
      std::string bytes(entry.data);
      if (dtype != std::string("F32")) {
        std::string half;
        const std::vector<float> values = ToFloats(entry).value();
        for (float x : values) {
          uint32_t bits;
          std::memcpy(&bits, &x, 4);
          // Truncated: good enough for a test. F16 by the exponent's new bias; what is too small
          // becomes zero.
          const int exponent = static_cast<int>((bits >> 23) & 0xff) - 112;
          uint16_t h = dtype == std::string("BF16") ? bits >> 16
                       : exponent <= 0
                           ? 0
                           : ((bits >> 16) & 0x8000) | (exponent << 10) | ((bits >> 13) & 0x3ff);
          half.append(reinterpret_cast<const char*>(&h), 2);
        }
        bytes = half;
      }
      storage.push_back(std::move(bytes));
      const SafetensorsEntry written{dtype, entry.shape, storage.back()};
      expected[name] = ToFloats(written).value();
      items.push_back({name.substr(strlen("transformer.")), dtype, entry.shape, storage.back()});
    }
    const std::string file = WriteSafetensors(std::move(items), {}).value();
    Pipeline target(MakePlan(TinyJob(), {2, 2}));
    target.Import(file, "");
    EXPECT_EQ(Floats(target.ExportWeights()), expected) << dtype;
    EXPECT_NEAR(target.Loss(3), source.Loss(3), 0.02) << dtype;
  }
}

TEST(Gpt2Stage, ImportErrorsNameTheTensorAndChangeNothing) {
  Pipeline p(MakePlan(TinyJob(), {4}));
  const std::string weights = p.ExportWeights();
  Pipeline wider(MakePlan(TinyJob(4, 64), {4})), deeper(MakePlan(TinyJob(5), {5}));
  const absl::Status shape = TakeWeights(wider.ExportWeights(), &p.stage(0));
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()),
              HasSubstr("transformer.wte.weight is [50, 64] but the job's model needs [50, 32]"));
  const absl::Status missing = TakeWeights(weights, &deeper.stage(0));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("transformer.h.4.ln_1.weight"));
  EXPECT_EQ(TakeWeights("garbage", &p.stage(0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TakeOptimizer(weights, &p.stage(0)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(p.ExportWeights(), weights);
}

TEST(Gpt2Stage, DiscardForgetsGradientsAndKeptMicroBatches) {
  Pipeline a(MakePlan(TinyJob(), {2, 2})), b(MakePlan(TinyJob(), {2, 2}));
  a.Gradients(3);
  for (int i = 0; i < a.size(); ++i) a.stage(i).Discard();
  EXPECT_EQ(a.stage(0).Norm().sum_squares, 0);
  EXPECT_EQ(a.Step(0), b.Step(0));
  EXPECT_EQ(a.ExportWeights(), b.ExportWeights());
}

// Parts of any size, across the ends of parameters.
TEST(Gpt2Stage, GradientsAreReadAndWrittenInParts) {
  for (int rank : {0, 1}) {
    Pipeline p(MakePlan(TinyJob(), {2, 2}));
    p.Gradients(0);
    worker::Stage& stage = p.stage(rank);
    EXPECT_EQ(stage.Elements(GroupPlan::TIED), 50 * 32);
    for (const GroupPlan::Tensors set : {GroupPlan::TIED, GroupPlan::OWN}) {
      const int64_t elements = stage.Elements(set);
      std::vector<float> whole(elements);
      ASSERT_TRUE(stage.ReadGradient(set, 0, absl::MakeSpan(whole)).ok());
      std::vector<float> twice = whole;
      for (float& x : twice) x *= 2;
      const double before = stage.Norm().sum_squares;
      for (int64_t at = 0; at < elements; at += 777) {
        const int64_t n = std::min<int64_t>(777, elements - at);
        std::vector<float> part(n);
        ASSERT_TRUE(stage.ReadGradient(set, at, absl::MakeSpan(part)).ok());
        EXPECT_EQ(part, std::vector<float>(whole.begin() + at, whole.begin() + at + n));
        ASSERT_TRUE(stage.WriteGradient(set, at, {twice.data() + at, static_cast<size_t>(n)}).ok());
      }
      ASSERT_TRUE(stage.ReadGradient(set, 0, absl::MakeSpan(whole)).ok());
      EXPECT_EQ(whole, twice);
      if (rank == 0 || set == GroupPlan::OWN) {
        EXPECT_GT(stage.Norm().sum_squares, before);
      }
    }
  }
}

TEST(Gpt2Stage, ANonFiniteGradientIsReported) {
  Pipeline p(MakePlan(TinyJob(), {2, 2}));
  const std::vector<float> bad = {std::numeric_limits<float>::infinity()};
  ASSERT_TRUE(p.stage(0).WriteGradient(GroupPlan::TIED, 3, bad).ok());
  EXPECT_FALSE(p.stage(0).Norm().finite);
  ASSERT_TRUE(p.stage(1).WriteGradient(GroupPlan::TIED, 3, bad).ok());
  EXPECT_TRUE(p.stage(1).Norm().finite);  // the tied embedding counts on the first stage alone
}

TEST(Gpt2Stage, AnEdgeHasTheShapeThatIsExpected) {
  const TensorDims dims{2, 3, 4};
  EXPECT_TRUE(CheckEdge("gradient", 1, Tensor::Zeros(dims), dims).ok());
  EXPECT_THAT(std::string(CheckEdge("gradient", 1, Tensor::Zeros({2, 3, 5}), dims).message()),
              HasSubstr("gradient of micro-batch 1 is 2 x 3 x 5, expected 2 x 3 x 4"));
  EXPECT_FALSE(CheckEdge("gradient", 1, Tensor{dims, {}}, dims).ok()) << "no numbers";
}

TEST(Gpt2Stage, WrongCallsGiveAStatus) {
  Pipeline p(MakePlan(TinyJob(), {2, 2}));
  const std::vector<uint32_t> tokens(16, 1), beyond(16, 50);
  MicroBatch batch;
  batch.samples = 1;
  batch.positions = 16;
  EXPECT_EQ(p.stage(0).Forward(batch, {}).status().code(),
            absl::StatusCode::kInvalidArgument);  // no tokens
  batch.tokens = beyond;
  EXPECT_THAT(std::string(p.stage(0).Forward(batch, {}).status().message()),
              HasSubstr("sample 0, position 0: token 50 is beyond model.vocabulary (50)"));
  batch.tokens = tokens;
  ASSERT_TRUE(p.stage(0).Forward(batch, {}).ok());
  EXPECT_EQ(p.stage(0).Forward(batch, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);  // twice
  EXPECT_EQ(p.stage(0).Backward(9, {}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(p.stage(0).Backward(0, Tensor::Zeros({1, 16, 31})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(p.stage(0).Backward(0, Tensor::Zeros({1, 16, 32})).ok());
  batch.targets = tokens;
  EXPECT_EQ(p.stage(1).Forward(batch, Tensor::Zeros({1, 15, 32})).status().code(),
            absl::StatusCode::kInvalidArgument);
  batch.positions = 17;
  EXPECT_EQ(p.stage(0).Forward(batch, {}).status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<float> numbers(1601);
  EXPECT_EQ(p.stage(0).ReadGradient(GroupPlan::TIED, 0, absl::MakeSpan(numbers)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(p.stage(0).WriteGradient(GroupPlan::TIED, -1, {numbers.data(), 1}).code(),
            absl::StatusCode::kInvalidArgument);

  Pipeline alone(MakePlan(TinyJob(), {4}));
  EXPECT_EQ(alone.stage(0).Elements(GroupPlan::TIED), 0) << "there is no second copy";
  EXPECT_EQ(MakeGpt2Stage(MakePlan(TinyJob(), {4}), 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeGpt2Stage(MakePlan(TinyJob(), {2, 3}), 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EngineOptions options;
  options.device = "tpu";
  EXPECT_THAT(std::string(MakeGpt2Stage(MakePlan(TinyJob(), {4}), 0, options).status().message()),
              HasSubstr("cpu or cuda:N"));
}

}  // namespace
}  // namespace isthmus::engine
