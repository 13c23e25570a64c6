#include "worker/engine/mlp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/safetensors.h"
#include "proto/model/model_cost.h"
#include "proto/model/stage_shapes.h"
#include "tests/engine/pipeline.h"
#include "tests/worker/stage_files.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/engine/network.h"

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;
using worker::MicroBatch;

JobSpec MlpJob(int layers) {
  JobSpec job = TinyJob(layers);
  job.clear_model();
  ModelSpec* m = job.mutable_model();
  m->set_family("mlp");
  m->set_layers(layers);
  m->set_hidden(6);
  m->set_inputs(4);
  m->set_classes(3);
  m->set_context(1);
  m->set_heads(1);
  m->set_vocabulary(256);
  job.mutable_strategy()->set_local_steps(1);
  return job;
}

std::unique_ptr<worker::Stage> Stage(const JobSpec& job, bool as_on_gpu = false) {
  EngineOptions options;
  options.threads = 1;
  options.as_on_gpu = as_on_gpu;
  return MakeGpt2Stage(MakePlan(job, {job.model().layers()}), 0, options).value();
}

const std::vector<uint32_t> kRows = {0, 255, 117, 90, 200, 30, 30, 128, 150, 99, 201, 240};
const std::vector<uint32_t> kClasses = {2, 0, 1};

MicroBatch Batch(bool train) {
  MicroBatch batch;
  batch.samples = 3;
  batch.positions = 1;
  batch.tokens = kRows;
  batch.targets = kClasses;
  batch.train = train;
  return batch;
}

std::map<std::string, std::vector<float>> Weights(worker::Stage* stage) {
  std::map<std::string, std::vector<float>> out;
  const std::vector<worker::StageTensor> tensors = stage->Tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<float> values(tensors[i].elements());
    EXPECT_TRUE(stage->ReadTensor(static_cast<int>(i), 0, absl::MakeSpan(values)).ok());
    if (tensors[i].weight()) out[tensors[i].name] = std::move(values);
  }
  return out;
}

// In plain loops: the logits of a row.
std::vector<double> Logits(const std::map<std::string, std::vector<float>>& weights, int layers,
                           const uint32_t* row) {
  std::vector<double> x = {row[0] / 255.0, row[1] / 255.0, row[2] / 255.0, row[3] / 255.0};
  for (int layer = 0; layer <= layers; ++layer) {
    const std::string name = layer < layers ? "mlp.layers." + std::to_string(layer) : "mlp.output";
    const std::vector<float>&w = weights.at(name + ".weight"), &b = weights.at(name + ".bias");
    std::vector<double> y(b.begin(), b.end());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
    }
    for (double& v : y) v = layer < layers ? std::max(0.0, v) : v;
    x = y;
  }
  return x;
}

TEST(Mlp, LossAndAccuracyAreThoseOfPlainLoops) {
  const auto stage = Stage(MlpJob(2));
  const auto weights = Weights(stage.get());
  double loss = 0;
  int64_t correct = 0;
  for (int row = 0; row < 3; ++row) {
    const std::vector<double> logits = Logits(weights, 2, &kRows[4 * row]);
    double sum = 0;
    for (const double v : logits) sum += std::exp(v);
    loss += std::log(sum) - logits[kClasses[row]];
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    correct += best == static_cast<int64_t>(kClasses[row]);
  }
  const worker::ForwardResult out = stage->Forward(Batch(false), {}).value();
  EXPECT_NEAR(out.loss_sum, loss, 1e-5);
  EXPECT_EQ(out.correct, correct);
  EXPECT_EQ(stage->Forward(Batch(true), {}).value().correct, -1);
}

// The gradient of each weight against the difference of two losses, in fp32: 1 % of the largest.
TEST(Mlp, GradientsAreThoseOfDifferences) {
  const auto stage = Stage(MlpJob(2));
  ASSERT_TRUE(stage->Forward(Batch(true), {}).ok());
  ASSERT_TRUE(stage->Backward(0, {}).ok());
  const int64_t n = stage->Elements(GroupPlan::OWN);
  EXPECT_EQ(n, StageCost(MlpJob(2).model(), 0, 2, 1).parameters);
  std::vector<float> gradient(n);
  ASSERT_TRUE(stage->ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(gradient)).ok());
  const float largest = *std::max_element(gradient.begin(), gradient.end());
  int64_t at = 0;
  const std::vector<worker::StageTensor> tensors = stage->Tensors();
  for (size_t i = 0; i < tensors.size() && tensors[i].weight(); ++i) {
    for (int64_t e = 0; e < tensors[i].elements(); ++e, ++at) {
      float value = 0;
      ASSERT_TRUE(stage->ReadTensor(static_cast<int>(i), e, {&value, 1}).ok());
      double losses[2];
      for (const int side : {0, 1}) {
        const float moved = value + (side == 0 ? -2e-3F : 2e-3F);
        ASSERT_TRUE(stage->WriteTensor(static_cast<int>(i), e, {&moved, 1}).ok());
        losses[side] = stage->Forward(Batch(false), {}).value().loss_sum;
      }
      ASSERT_TRUE(stage->WriteTensor(static_cast<int>(i), e, {&value, 1}).ok());
      EXPECT_NEAR((losses[1] - losses[0]) / 4e-3, gradient[at], 0.02 * largest)
          << tensors[i].name << " " << e;
    }
  }
  EXPECT_EQ(at, n);
}

// The arithmetic of a GPU, fp32 and bf16, on the CPU.
TEST(Mlp, FlatParametersLearnTheSame) {
  for (const char* precision : {"fp32", "bf16"}) {
    JobSpec job = MlpJob(3);
    job.mutable_recipe()->set_precision(precision);
    const auto plain = Stage(job), flat = Stage(job, true);
    for (int step = 1; step <= 5; ++step) {
      double losses[2];
      for (const bool on_gpu : {false, true}) {
        worker::Stage* stage = on_gpu ? flat.get() : plain.get();
        losses[on_gpu] = stage->Forward(Batch(true), {}).value().loss_sum;
        ASSERT_TRUE(stage->Backward(0, {}).ok());
        worker::OptimizerStep update;
        update.step = step;
        update.learning_rate = 1e-2;
        ASSERT_TRUE(stage->Apply(update).ok());
      }
      EXPECT_NEAR(losses[0], losses[1], (precision[0] == 'f' ? 1e-5 : 3e-2) * losses[0])
          << precision << " " << step;
    }
  }
}

TEST(Mlp, ParametersAreThoseOfShapesAndCosts) {
  const ModelSpec model = MlpJob(4).model();
  for (auto [first, end] : {std::pair<int, int>{0, 4}, {0, 1}, {1, 3}, {3, 4}}) {
    std::vector<TensorDims> shapes;
    int64_t n = 0;
    for (const ParameterSpec& spec : StageParameters(model, first, end)) {
      n += spec.elements();
      shapes.push_back({1, spec.shape.size() > 1 ? spec.shape[0] : 1, spec.shape.back()});
    }
    const std::vector<TensorDims> expected = StageShapes(model, first, end);
    ASSERT_EQ(shapes.size(), expected.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_EQ(shapes[i].positions, expected[i].positions);
      EXPECT_EQ(shapes[i].hidden, expected[i].hidden);
    }
    EXPECT_EQ(n, StageCost(model, first, end, 1).parameters) << first << " " << end;
  }
  EXPECT_EQ(ParameterCount(model), 5 * 6 + 3 * 7 * 6 + 7 * 3);
}

TEST(Mlp, RowsAndClassesBeyondTheModelAreRefused) {
  const auto stage = Stage(MlpJob(1));
  const auto refusal = [&](std::vector<uint32_t> rows, std::vector<uint32_t> classes) {
    MicroBatch batch = Batch(true);
    batch.tokens = rows;
    batch.targets = classes;
    return std::string(stage->Forward(batch, {}).status().message());
  };
  std::vector<uint32_t> wrong = kRows;
  wrong[5] = 256;
  EXPECT_THAT(refusal(wrong, kClasses), HasSubstr("sample 1, position 1: value 256"));
  EXPECT_THAT(refusal(kRows, {0, 3, 0}), HasSubstr("class 3 is beyond model.classes (3)"));
  EXPECT_THAT(refusal({1, 2, 3}, kClasses), HasSubstr("3 ids (value), expected 3 x 4"));
  JobSpec job = MlpJob(1);
  job.mutable_model()->set_classes(1);
  EXPECT_THAT(std::string(MakeGpt2Stage(MakePlan(job, {1}), 0, {}).status().message()),
              HasSubstr("makes no sense"));
}

}  // namespace
}  // namespace isthmus::engine
