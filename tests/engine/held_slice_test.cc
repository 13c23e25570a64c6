// Stages that train slices: what they hold is a part of the whole model's, moves whole, and is all
// that they compute with.
#include "worker/engine/held_slice.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "proto/model/model_cost.h"
#include "tests/engine/pipeline.h"
#include "tests/worker/stage_files.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

// One stage a replica, of 4 layers of width 32 with 4 heads.
Plan SlicedPlan(const std::vector<double>& shares, int whole_layers = 0) {
  JobSpec job = TinyJob();
  job.mutable_strategy()->set_local_steps(5);
  job.mutable_recipe()->set_steps(1000);
  Plan plan = MakePlan(job, {4});
  const RankPlan rank = plan.ranks(0);
  plan.clear_ranks();
  plan.mutable_deal()->set_seed(3);
  plan.mutable_deal()->set_whole_layers(whole_layers);
  for (size_t r = 0; r < shares.size(); ++r) {
    *plan.add_ranks() = rank;
    plan.mutable_ranks(static_cast<int>(r))->set_replica(static_cast<int>(r));
    plan.mutable_deal()->add_shares(shares[r]);
    plan.add_replicas()->set_slice(static_cast<int>(r));
    plan.mutable_replicas(static_cast<int>(r))->set_samples(r == 0 ? 6 - shares.size() : 1);
  }
  return plan;
}

std::unique_ptr<worker::Stage> MakeStage(const Plan& plan, int rank, bool as_on_gpu = false) {
  EngineOptions options;
  options.threads = 1;
  options.as_on_gpu = as_on_gpu;
  return MakeGpt2Stage(plan, rank, options).value();
}

Floats ReadSlice(worker::Stage* stage, const Plan& plan, const Slice& units) {
  Floats values(SliceElements(plan.job().model(), units));
  EXPECT_TRUE(stage->OfSlice()->Read(units, absl::MakeSpan(values)).ok());
  return values;
}

// All slices of a round come together on the stage of rank 0.
std::string Merged(const Plan& plan, int64_t round,
                   std::vector<std::unique_ptr<worker::Stage>>* stages) {
  worker::StageSlice* all = (*stages)[0]->OfSlice();
  EXPECT_TRUE(all->BeginWhole().ok());
  for (size_t r = 1; r < stages->size(); ++r) {
    const Slice units = SliceOf(plan, static_cast<int>(r), round);
    EXPECT_TRUE(all->WriteWhole(units, ReadSlice((*stages)[r].get(), plan, units)).ok());
  }
  return worker::WeightsOf(*(*stages)[0]);
}

std::vector<std::unique_ptr<worker::Stage>> AllStages(const Plan& plan, bool as_on_gpu = false) {
  std::vector<std::unique_ptr<worker::Stage>> stages;
  for (int r = 0; r < plan.ranks_size(); ++r) stages.push_back(MakeStage(plan, r, as_on_gpu));
  return stages;
}

TEST(HeldSlice, SlicesBeginAsPartsOfTheWholeModel) {
  for (const bool as_on_gpu : {false, true}) {
    for (const std::vector<double>& shares :
         {std::vector<double>{0.5, 0.5}, {0.6, 0.2, 0.2}, {0.25, 0.25, 0.25, 0.25}}) {
      Plan plan = SlicedPlan(shares);
      Plan whole = plan;
      whole.clear_deal();
      const std::string weights = worker::WeightsOf(*MakeStage(whole, 0, as_on_gpu));
      for (int64_t start : {0, 5, 40}) {
        plan.set_start_step(start);
        auto stages = AllStages(plan, as_on_gpu);
        EXPECT_TRUE(Merged(plan, start / 5, &stages) == weights)
            << shares.size() << " at " << start;
      }
    }
  }
}

// Memory and work: of what is dealt exactly the share, in every round.
TEST(HeldSlice, HoldsItsShareAndNothingElse) {
  const ModelSpec model = SlicedPlan({1}).job().model();
  const auto parameters = [&](const Plan& plan, int rank) {
    int64_t elements = 0;
    for (const ParameterSpec& spec : StageParameters(model, 0, 4, HeldSlice::AtStart(plan, rank)))
      elements += spec.elements();
    return elements;
  };
  const Plan plan = SlicedPlan({0.75, 0.25}), cut = SlicedPlan({0.75, 0.25}, 1);
  const int64_t all = StageCost(model, 0, 4, 1).parameters;
  const int64_t dealt = SliceElements(model, WholeOf(plan, 0)), shared = all - dealt;
  EXPECT_EQ(parameters(plan, 0), shared + dealt * 3 / 4);
  EXPECT_EQ(parameters(plan, 1), shared + dealt / 4);
  EXPECT_EQ(parameters(cut, 1), shared + dealt / 2 + dealt / 8) << "two of four layers are whole";
  EXPECT_GT(dealt, 0.9 * (all - StageCost(model, 0, 4, 1).parameters / 10));
  auto stage = MakeStage(plan, 1);
  EXPECT_EQ(stage->Elements(GroupPlan::OWN), shared) << "what is dealt is reduced with nobody";
}

TEST(HeldSlice, DealsMoveWeightsAndChangeNoBit) {
  for (const bool as_on_gpu : {false, true}) {
    const Plan plan = SlicedPlan({0.5, 0.3, 0.2});
    auto stages = AllStages(plan, as_on_gpu);
    const std::string weights = Merged(plan, 0, &stages);
    stages[0]->OfSlice()->EndWhole();
    for (int64_t round = 0; round < 4; ++round) {
      const int64_t step = 5 * round + 4;
      std::map<std::pair<int, int>, Floats> moved;
      for (int from = 0; from < 3; ++from) {
        for (int to = 0; to < 3; ++to)
          moved[{from, to}] =
              ReadSlice(stages[from].get(), plan, Moves(plan, from, to, step, false));
      }
      for (int to = 0; to < 3; ++to) {
        ASSERT_TRUE(stages[to]->OfSlice()->Hold(SliceOf(plan, to, round + 1)).ok());
        for (int from = 0; from < 3; ++from) {
          if (from == to) continue;  // they stay
          ASSERT_TRUE(stages[to]
                          ->OfSlice()
                          ->Write(Moves(plan, from, to, step, false), moved[{from, to}])
                          .ok());
        }
      }
      EXPECT_TRUE(Merged(plan, round + 1, &stages) == weights) << round;
      stages[0]->OfSlice()->EndWhole();
    }
  }
}

// Where the whole model is together the next slice is taken from it.
TEST(HeldSlice, TheNextSliceComesFromTheWholeModel) {
  const Plan plan = SlicedPlan({0.5, 0.5});
  auto stages = AllStages(plan);
  const std::string weights = Merged(plan, 0, &stages);
  ASSERT_TRUE(stages[0]->OfSlice()->Hold(SliceOf(plan, 0, 7)).ok());
  EXPECT_TRUE(worker::WeightsOf(*stages[0]) == weights);
  stages[0]->OfSlice()->EndWhole();
  Plan later = plan;
  later.set_start_step(35);
  auto fresh = MakeStage(later, 0);
  EXPECT_EQ(ReadSlice(stages[0].get(), plan, SliceOf(plan, 0, 7)),
            ReadSlice(fresh.get(), plan, SliceOf(plan, 0, 7)));
}

// A checkpoint of the whole model, in pieces of any size.
TEST(HeldSlice, TakesItsPartOfWholeTensors) {
  for (const bool as_on_gpu : {false, true}) {
    const Plan plan = SlicedPlan({0.5, 0.3, 0.2});
    auto stages = AllStages(plan, as_on_gpu);
    float next = 0;
    const std::vector<worker::StageTensor> tensors = stages[0]->Tensors();
    for (const auto& stage : stages) {
      next = 0;
      ASSERT_EQ(stage->Tensors().size(), tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!tensors[i].weight()) continue;
        Floats values(tensors[i].elements());
        std::iota(values.begin(), values.end(), next);
        next += 1;
        for (int64_t at = 0, n = 7; at < tensors[i].elements(); at += n, n = n * 3 % 101 + 1) {
          n = std::min(n, tensors[i].elements() - at);
          ASSERT_TRUE(
              stage
                  ->WriteTensor(static_cast<int>(i), at, absl::MakeConstSpan(values).subspan(at, n))
                  .ok());
        }
      }
    }
    Merged(plan, 0, &stages);
    next = 0;
    const std::vector<worker::StageTensor> named = stages[0]->Tensors();
    EXPECT_GT(named.size(), tensors.size()) << "moments of what is dealt";
    for (size_t i = 0; i < named.size(); ++i) {
      Floats values(named[i].elements()), wanted(values.size());
      ASSERT_TRUE(stages[0]->ReadTensor(static_cast<int>(i), 0, absl::MakeSpan(values)).ok());
      if (named[i].weight()) std::iota(wanted.begin(), wanted.end(), next++);
      EXPECT_EQ(values, wanted) << named[i].name;
    }
  }
}

// The whole model in a validation pass is what an ordinary stage of the same weights computes; a
// slice in training is a narrow network.
TEST(HeldSlice, ComputesWithTheWholeModelOrWithItsSlice) {
  for (const bool as_on_gpu : {false, true}) {
    const Plan plan = SlicedPlan({0.5, 0.5}, 1);
    Plan whole = plan;
    whole.clear_deal();
    auto ordinary = MakeStage(whole, 0, as_on_gpu);
    auto stages = AllStages(plan, as_on_gpu);
    std::vector<uint32_t> tokens(32), targets(32);
    for (uint32_t i = 0; i < 32; ++i) {
      tokens[i] = i * 7 % 50;
      targets[i] = i * 11 % 50;
    }
    worker::MicroBatch batch;
    batch.samples = 2;
    batch.positions = 16;
    batch.tokens = tokens;
    batch.targets = targets;
    batch.train = false;
    EXPECT_THAT(std::string(stages[0]->Forward(batch, {}).status().message()),
                HasSubstr("a slice alone"));
    Merged(plan, 0, &stages);
    const double loss = ordinary->Forward(batch, {})->loss_sum;
    EXPECT_EQ(stages[0]->Forward(batch, {})->loss_sum, loss);
    batch.train = true;
    for (int r = 0; r < 2; ++r) {
      const double narrow = stages[r]->Forward(batch, {})->loss_sum;
      EXPECT_NE(narrow, loss);
      EXPECT_NEAR(narrow, loss, 0.05 * loss);
      ASSERT_TRUE(stages[r]->Backward(0, {}).ok());
      EXPECT_GT(stages[r]->Norm().sum_squares, 0);
    }
  }
}

// A step of a slice is that of a model in which the other units are zero and whose projections are
// scaled: what a mask over the whole model would train.
TEST(HeldSlice, BlocksAreScaledMasks) {
  at::manual_seed(1);
  const int64_t h = 8, heads = 4, rows = 3;
  const auto random = [](std::vector<int64_t> shape) { return at::randn(shape, at::kFloat); };
  BlockWeights w = {at::ones({h}),      at::zeros({h}),  random({h, 3 * h}), random({3 * h}),
                    random({h, h}),     random({h}),     at::ones({h}),      at::zeros({h}),
                    random({h, 4 * h}), random({4 * h}), random({4 * h, h}), random({h})};
  const at::Tensor x = random({2, rows, h}), mask = CausalMask(rows, at::kFloat);
  const LayerSlice held = {true, {1, 3}, {0, 5, 6, 7, 20, 21, 30, 31}};
  ModelSpec model;
  model.set_hidden(h);
  model.set_heads(heads);
  const auto index = [&](DealtBy by) {
    return at::tensor(DealtIndices(model, by, held), at::kLong);
  };
  BlockWeights narrow = w;
  narrow.attention_weight = w.attention_weight.index_select(1, index(DealtBy::kHeadColumns));
  narrow.attention_bias = w.attention_bias.index_select(0, index(DealtBy::kHeadColumns));
  narrow.projection_weight = w.projection_weight.index_select(0, index(DealtBy::kHeadRows));
  narrow.wide_weight = w.wide_weight.index_select(1, index(DealtBy::kUnitColumns));
  narrow.wide_bias = w.wide_bias.index_select(0, index(DealtBy::kUnitColumns));
  narrow.narrow_weight = w.narrow_weight.index_select(0, index(DealtBy::kUnitRows));
  BlockWeights masked = w;
  masked.projection_weight =
      at::zeros_like(w.projection_weight)
          .index_copy(0, index(DealtBy::kHeadRows), narrow.projection_weight.mul(2));
  masked.narrow_weight = at::zeros_like(w.narrow_weight)
                             .index_copy(0, index(DealtBy::kUnitRows), narrow.narrow_weight.mul(4));
  const at::Tensor a = Block(x, narrow, {2, 2, 4}, mask, 1e-5);
  const at::Tensor b = Block(x, masked, {heads}, mask, 1e-5);
  EXPECT_TRUE(at::allclose(a, b, 1e-5, 1e-5));
  EXPECT_FALSE(at::allclose(a, Block(x, w, {heads}, mask, 1e-5), 1e-2, 1e-2));
}

TEST(HeldSlice, MomentsOfWhatIsDealtBeginAnew) {
  for (const bool as_on_gpu : {false, true}) {
    const Plan plan = SlicedPlan({0.5, 0.5});
    // Two deals that give back what was held: the first step after them is that of a new stage.
    auto stage = MakeStage(plan, 0, as_on_gpu), fresh = MakeStage(plan, 0, as_on_gpu);
    std::vector<uint32_t> tokens(16), targets(16, 3);
    worker::MicroBatch batch;
    batch.samples = 1;
    batch.positions = 16;
    batch.tokens = tokens;
    batch.targets = targets;
    batch.loss_scale = 1.0 / 16;
    const auto step = [&](worker::Stage* s, int64_t count, double rate) {
      ASSERT_TRUE(s->Forward(batch, {}).ok());
      ASSERT_TRUE(s->Backward(0, {}).ok());
      ASSERT_TRUE(s->Apply({count, rate, 1, 0}).ok());
    };
    for (int64_t count = 1; count <= 3; ++count) {
      std::fill(targets.begin(), targets.end(), static_cast<uint32_t>(4 * count));
      step(stage.get(), count, 0);
    }
    std::fill(targets.begin(), targets.end(), 3);
    const Slice held = SliceOf(plan, 0, 0);
    const Floats before = ReadSlice(stage.get(), plan, held);
    ASSERT_TRUE(stage->OfSlice()->Hold(held).ok());
    step(stage.get(), 4, 1e-3);
    step(fresh.get(), 1, 1e-3);
    EXPECT_NE(ReadSlice(stage.get(), plan, held), before);
    EXPECT_EQ(ReadSlice(stage.get(), plan, held), ReadSlice(fresh.get(), plan, held));
    step(stage.get(), 5, 1e-3);
    step(fresh.get(), 2, 1e-3);
    EXPECT_NE(ReadSlice(stage.get(), plan, held), ReadSlice(fresh.get(), plan, held))
        << "those of what is shared are kept";
  }
}

TEST(HeldSlice, RefusesWhatIsNotHeld) {
  const Plan plan = SlicedPlan({0.5, 0.5});
  auto stage = MakeStage(plan, 0);
  worker::StageSlice* slice = stage->OfSlice();
  const Slice mine = SliceOf(plan, 0, 0), theirs = SliceOf(plan, 1, 0);
  Floats values(SliceElements(plan.job().model(), theirs));
  EXPECT_FALSE(slice->Read(theirs, absl::MakeSpan(values)).ok());
  EXPECT_FALSE(slice->Write(theirs, values).ok());
  EXPECT_FALSE(slice->WriteWhole(theirs, values).ok()) << "it is not together";
  values.pop_back();
  EXPECT_FALSE(slice->Read(mine, absl::MakeSpan(values)).ok());
  EXPECT_FALSE(slice->Write(mine, values).ok());
  EXPECT_FALSE(slice->Hold(WholeOf(plan, 0)).ok()) << "another size";
  EXPECT_FALSE(slice->Hold({}).ok());
  // What a slice lacks is not stored: six tensors of each of four layers.
  const std::vector<worker::StageTensor> tensors = stage->Tensors();
  int refused = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    float one = 0;
    refused += !stage->ReadTensor(static_cast<int>(i), 0, {&one, 1}).ok();
  }
  EXPECT_EQ(refused, 24);
  Plan ordinary = plan;
  ordinary.clear_deal();
  EXPECT_EQ(MakeStage(ordinary, 0)->OfSlice(), nullptr);
  Plan wrong = plan;
  wrong.mutable_deal()->add_shares(0.5);
  EXPECT_THAT(std::string(MakeGpt2Stage(wrong, 0, {}).status().message()),
              HasSubstr("3 slices for 2 replicas"));
}

}  // namespace
}  // namespace isthmus::engine
