// Slices of an MLP: a replica trains the products of its units with its units alone, and what no
// replica trains in a round stays as it is, bit for bit (algorithms, T5.8, T5.9).
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/rng.h"
#include "proto/model/model_cost.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"
#include "tests/rank/gpt_world.h"
#include "tests/worker/world.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/engine/held_slice.h"
#include "worker/engine/mlp.h"

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;
using worker::Stage;

constexpr int kInputs = 5, kHidden = 12, kClasses = 3;

Plan MakePlan(const std::vector<int>& replicas, int layers = 3) {
  worker::WorldShape shape = worker::SmallMlp();
  shape.stages = 1;
  shape.layers = layers;
  shape.hidden = kHidden;
  shape.inputs = kInputs;
  shape.classes = kClasses;
  shape.replicas = replicas;
  shape.global_batch = 0;
  for (const int samples : replicas) shape.global_batch += samples;
  shape.subnetworks = true;
  shape.local_steps = 4;
  return worker::MakePlan(shape);
}

std::unique_ptr<Stage> Make(const Plan& plan, int rank, bool as_on_gpu = false) {
  EngineOptions options;
  options.threads = 1;
  options.as_on_gpu = as_on_gpu;
  return MakeGpt2Stage(plan, rank, options).value();
}

void Train(Stage* stage, int steps) {
  const worker::RowCorpus rows(60, kInputs, kClasses, 0);
  for (int step = 1; step <= steps; ++step) {
    worker::MicroBatch batch;
    std::vector<uint32_t> values(4 * kInputs), classes(4);
    for (uint32_t i = 0; i < 4; ++i)
      ASSERT_TRUE(rows.Read(4 * step + i, &values[i * kInputs], &classes[i]).ok());
    batch.samples = 4;
    batch.positions = 1;
    batch.tokens = values;
    batch.targets = classes;
    batch.loss_scale = 0.25;
    ASSERT_TRUE(stage->Forward(batch, {}).ok());
    ASSERT_TRUE(stage->Backward(0, {}).ok());
    worker::OptimizerStep update;
    update.step = step;
    update.learning_rate = 1e-2;
    ASSERT_TRUE(stage->Apply(update).ok());
  }
}

using Model = std::map<std::string, std::vector<float>>;

// The whole model, together on the first rank; it is apart again after this.
Model Gather(const Plan& plan, const std::vector<std::unique_ptr<Stage>>& stages) {
  worker::StageSlice* first = stages[0]->OfSlice();
  EXPECT_TRUE(first->BeginWhole().ok());
  for (size_t r = 1; r < stages.size(); ++r) {
    const Slice units = SliceOf(plan, static_cast<int>(r), 0);
    std::vector<float> values(SliceElements(plan.job().model(), units));
    EXPECT_TRUE(stages[r]->OfSlice()->Read(units, absl::MakeSpan(values)).ok());
    EXPECT_TRUE(first->WriteWhole(units, values).ok());
  }
  Model model;
  const std::vector<worker::StageTensor> tensors = stages[0]->Tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].weight()) continue;
    std::vector<float>& values = model[tensors[i].name];
    values.resize(tensors[i].elements());
    EXPECT_TRUE(stages[0]->ReadTensor(static_cast<int>(i), 0, absl::MakeSpan(values)).ok());
  }
  first->EndWhole();
  return model;
}

std::vector<std::unique_ptr<Stage>> MakeAll(const Plan& plan, bool as_on_gpu = false) {
  std::vector<std::unique_ptr<Stage>> stages;
  for (int r = 0; r < plan.ranks_size(); ++r) stages.push_back(Make(plan, r, as_on_gpu));
  return stages;
}

// T5.8, on either kind of parameters.
TEST(MlpSlice, WhatNoReplicaTrainsIsBitIdentical) {
  const Plan plan = MakePlan({4, 4, 4});
  ASSERT_TRUE(CheckDeal(plan).ok()) << CheckDeal(plan);
  for (const bool as_on_gpu : {false, true}) {
    const auto stages = MakeAll(plan, as_on_gpu);
    const Model before = Gather(plan, stages);
    for (const auto& stage : stages) Train(stage.get(), 4);
    const Model after = Gather(plan, stages);
    for (const char* name : {"mlp.layers.1.weight", "mlp.layers.2.weight"}) {
      const int layer = name[11] - '0';
      int own = 0, moved = 0;
      for (int from = 0; from < kHidden; ++from) {
        for (int to = 0; to < kHidden; ++to) {
          bool in_play = false;
          for (int r = 0; r < 3; ++r) {
            const Slice held = SliceOf(plan, r, 0);
            const auto has = [&](int l, int unit) {
              return std::count(held[l].units.begin(), held[l].units.end(), unit) > 0;
            };
            in_play = in_play || (has(layer - 1, from) && has(layer, to));
          }
          const float a = before.at(name)[from * kHidden + to];
          const float b = after.at(name)[from * kHidden + to];
          own += in_play;
          moved += a != b;
          EXPECT_TRUE(in_play || a == b) << name << " " << from << " " << to;
        }
      }
      EXPECT_EQ(own, kHidden * kHidden / 3);
      EXPECT_GT(moved, own / 2);
    }
  }
}

// A stage holds 1 / n of the weights, and trains 1 / n^2 of a layer between two others.
TEST(MlpSlice, AReplicaHoldsAndTrainsItsShare) {
  const Plan plan = MakePlan({4, 4, 4});
  const ModelSpec& model = plan.job().model();
  int64_t trained = 0;
  for (const ParameterSpec& spec : StageParameters(model, 0, 3, HeldSlice::AtStart(plan, 1))) {
    trained += spec.elements();
  }
  EXPECT_EQ(trained, 4 * (kInputs + 1) + 2 * (4 * 4 + 4) + 4 * kClasses + kClasses);
  const SliceShare third{1.0 / 3, 0, false};
  EXPECT_NEAR(StageCost(model, 0, 3, 1, third).parameters, trained, 3);
  EXPECT_EQ(SliceElements(model, SliceOf(plan, 1, 0)) * 3, DealtParameters(model, 0, 3, third));
  EXPECT_EQ(OwnElements(plan, 1), kClasses);  // the output's bias alone is shared
  // Of a wide one: weights and moments of what is trained, and what rests of it once.
  ModelSpec wide = model;
  wide.set_hidden(3000);
  const int64_t whole = StageMemoryBytes(wide, 0, 3, 1, 1);
  EXPECT_LT(StageMemoryBytes(wide, 0, 3, 1, 1, third), 0.22 * whole);
  EXPECT_LT(StageCost(wide, 0, 3, 1, third).flops(), 0.13 * StageCost(wide, 0, 3, 1).flops());
}

// What a checkpoint holds goes to what is held, in pieces of any size.
TEST(MlpSlice, TakesWeightsOfTheWholeModel) {
  const Plan plan = MakePlan({4, 4, 4});
  const auto stages = MakeAll(plan);
  for (const auto& stage : stages) {
    const std::vector<worker::StageTensor> tensors = stage->Tensors();
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].weight()) continue;
      std::vector<float> values(tensors[t].elements());
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(100 * t + i);
      for (size_t at = 0; at < values.size(); at += 7) {
        const size_t n = std::min<size_t>(7, values.size() - at);
        ASSERT_TRUE(
            stage->WriteTensor(static_cast<int>(t), at, absl::MakeSpan(values).subspan(at, n))
                .ok());
      }
    }
  }
  const Model model = Gather(plan, stages);
  EXPECT_EQ(model.size(), 8u);
  for (const auto& [name, values] : model) {
    for (size_t i = 1; i < values.size(); ++i) ASSERT_EQ(values[i], values[0] + i) << name;
  }
}

TEST(MlpSlice, PlansThatCanNotBeDealtAreRefused) {
  Plan plan = MakePlan({4, 4, 4});
  plan.mutable_deal()->set_whole_layers(1);
  EXPECT_THAT(std::string(CheckDeal(plan).message()), HasSubstr("all of its layers are dealt"));
  plan = MakePlan({4, 4, 4});
  plan.mutable_job()->mutable_model()->set_hidden(2);
  EXPECT_THAT(std::string(CheckDeal(plan).message()), HasSubstr("has 2 units (model.hidden)"));
}

// T5.9: a hidden layer of 64 units learns what a teacher says. Four replicas with a quarter of the
// units each, ten steps a round.
class Teacher {
 public:
  static constexpr int kIn = 8, kUnits = 64, kRounds = 300, kSteps = 10, kBatch = 32;

  explicit Teacher(uint64_t seed) : seed_(seed) {
    weight_ = Normal({kIn, kUnits}, 1, std::sqrt(2.0 / kIn));
    output_ = Normal({kUnits, 1}, 2, std::sqrt(1.0 / kUnits));
  }

  // The error of the merged network over the variance of what the teacher says. `scaled`: outputs
  // of a slice count `replicas` times while it trains; else the merged ones count `merged` times.
  double Learn(int replicas, bool scaled, double merged = 1) const {
    at::Tensor w = Normal({kIn, kUnits}, 3, std::sqrt(2.0 / kIn));
    at::Tensor v = Normal({kUnits, 1}, 4, std::sqrt(1.0 / kUnits));
    const at::Tensor no_bias = at::zeros({kUnits}), none = at::zeros({1});
    Plan plan = MakePlan(std::vector<int>(std::max(2, replicas), 4), 1);
    plan.mutable_job()->mutable_model()->set_hidden(kUnits);
    plan.mutable_deal()->set_seed(seed_);
    uint64_t draw = 10;
    for (int round = 0; round < kRounds; ++round) {
      for (int r = 0; r < replicas; ++r) {
        const at::Tensor held = replicas == 1 ? All() : Units(plan, r, round);
        at::Tensor own_w = at::index_select(w, 1, held).requires_grad_(true);
        at::Tensor own_v = at::index_select(v, 0, held).requires_grad_(true);
        for (int step = 0; step < kSteps; ++step) {
          const at::Tensor x = Normal({kBatch, 1, kIn}, ++draw, 1);
          const at::Tensor h = HiddenLayer(x, own_w, no_bias.narrow(0, 0, held.size(0)), 1);
          const at::Tensor error = Dense(h, own_v, none, scaled ? replicas : 1).sub(Say(x));
          error.square().mean().backward();
          // A slice whose outputs count n times is one with outputs of n v: its step of v is the
          // plain mask's of n v where the rate is 1 / n^2, and that of W is the same.
          const double output_rate = kRate / (scaled ? replicas * replicas : 1);
          for (const auto& [p, rate] : {std::pair(&own_w, kRate), std::pair(&own_v, output_rate)}) {
            const c10::AutoGradMode no_gradients(false);
            p->sub_(p->grad(), rate);
            p->mutable_grad() = at::Tensor();
          }
        }
        w.index_copy_(1, held, own_w.detach());
        v.index_copy_(0, held, own_v.detach());
      }
    }
    const at::Tensor x = Normal({2000, 1, kIn}, 5, 1), says = Say(x);
    const at::Tensor error = Dense(HiddenLayer(x, w, no_bias, 1), v, none, merged).sub(says);
    return error.square().mean().item<double>() / says.var().item<double>();
  }

 private:
  static constexpr double kRate = 0.05;

  static at::Tensor All() { return at::arange(kUnits); }
  static at::Tensor Units(const Plan& plan, int rank, int round) {
    const std::vector<int> units = SliceOf(plan, rank, round)[0].units;
    at::Tensor out = at::empty({static_cast<int64_t>(units.size())}, at::kLong);
    std::copy(units.begin(), units.end(), out.data_ptr<int64_t>());
    return out;
  }
  at::Tensor Normal(std::vector<int64_t> shape, uint64_t stream, double std) const {
    ParameterSpec spec;
    spec.name = std::to_string(stream);
    spec.shape = std::move(shape);
    spec.init_std = std;
    at::Tensor out = at::empty(spec.shape, at::kFloat);
    FillInitial(spec, seed_, out.data_ptr<float>());
    return out;
  }
  at::Tensor Say(const at::Tensor& x) const {
    return Dense(HiddenLayer(x, weight_, at::zeros({kUnits}), 1), output_, at::zeros({1}), 1);
  }

  const uint64_t seed_;
  at::Tensor weight_, output_;
};

// The published figures name neither inputs nor rate; 8 and 0.05 are ours. One network alone had
// .081 .050 .027 .023 there, slices .121 .082 .055 .039, or .104 .075 .049 .037 where the merged
// outputs are divided by n; unscaled ones 7.35 to 8.33, as each learns to say all of it: (n - 1)^2.
// Here: .044 .017 .041 .037; .082 .076 .144 .105; .083 .070 .142 .104; 5.81 to 12.37. A minute; one
// seed without ISTHMUS_LONG.
TEST(MlpSlice, ScalingMakesTheMergedNetworkRight) {
  const int seeds = std::getenv("ISTHMUS_LONG") != nullptr ? 4 : 1;
  double mean = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Teacher teacher(seed);
    const double one = teacher.Learn(1, false), scaled = teacher.Learn(4, true),
                 plain = teacher.Learn(4, false), divided = teacher.Learn(4, false, 0.25);
    std::printf("one %.3f, slices %.3f, divided %.3f, unscaled %.2f\n", one, scaled, divided,
                plain);
    EXPECT_LE(one, 0.081);
    EXPECT_NEAR(scaled / divided, 1, 0.2) << "the same but for the draws";
    EXPECT_GT(plain, 4);
    mean += scaled / seeds;
  }
  EXPECT_LE(mean, 0.121);
}

}  // namespace
}  // namespace isthmus::engine
