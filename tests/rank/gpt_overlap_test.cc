// Overlapped steps with the real engine: any cut does what the algorithm does on one process, on
// parameters of their own and on flat ones; and with look-ahead a step's delay costs little.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "tests/rank/gpt_world.h"
#include "tests/worker/stage_files.h"

namespace isthmus::worker {
namespace {

using ::testing::SizeIs;

// Sums of fp32 gradients and of norms are grouped differently; nothing else differs.
constexpr double kTolerance = 1e-5;

WorldShape Overlapped() {
  WorldShape shape = SmallGpt();
  shape.schedule = "overlap";
  shape.checkpoint_every = 5;
  return shape;
}

std::vector<double> RunWith(const WorldShape& shape, const Corpus& corpus, bool flat) {
  MemoryStore store;
  engine::EngineOptions place;
  place.as_on_gpu = flat;
  World world(MakePlan(shape), GptOptions(&store, &corpus, {place}));
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  return world.Losses();
}

// after + 2 x (after - before), of all tensors.
std::string Forecast(const std::string& before, const std::string& after) {
  const auto old = ParseSafetensors(before).value(), now = ParseSafetensors(after).value();
  std::deque<std::vector<float>> values;
  std::vector<SafetensorsItem> items;
  for (const auto& [name, entry] : now) {
    const std::vector<float> b = ToFloats(old.at(name)).value();
    std::vector<float>& a = values.emplace_back(ToFloats(entry).value());
    for (size_t i = 0; i < a.size(); ++i) a[i] += 2 * (a[i] - b[i]);
    const absl::string_view bytes(reinterpret_cast<const char*>(a.data()), 4 * a.size());
    items.push_back({name, "F32", entry.shape, bytes});
  }
  return WriteSafetensors(std::move(items), {}).value();
}

// Two models: one computes gradients at the weights before the last update, or at a forecast of
// those after it; the other has the newest. Nothing is under way after a checkpoint.
std::vector<double> RunAlone(WorldShape shape, const Corpus& corpus) {
  shape.stages = 1;
  const Plan plan = MakePlan(shape);
  auto gradients = GptStages()(plan, 0).value(), newest = GptStages()(plan, 0).value();
  SampleOrder order(plan.job().seed(), corpus.train_samples(), shape.global_batch);
  const double scale = 1.0 / (shape.global_batch * shape.context);
  std::vector<double> losses;
  std::vector<float> g(newest->Elements(GroupPlan::OWN));
  std::deque<std::string> ahead;  // what this step and those after it compute with
  for (int64_t step = 0; step < shape.steps; ++step) {
    const std::string before = WeightsOf(*newest);
    if (step % shape.checkpoint_every == 0) ahead = {before, before};
    EXPECT_TRUE(TakeWeights(ahead.front(), gradients.get()).ok());
    ahead.pop_front();
    losses.push_back(scale * RunPasses(gradients.get(), corpus, order.Step(step), shape, scale));
    EXPECT_TRUE(gradients->ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(g)).ok());
    gradients->Discard();
    EXPECT_TRUE(newest->WriteGradient(GroupPlan::OWN, 0, g).ok());
    ApplyStep(newest.get(), plan.job().recipe(), step);
    const std::string after = WeightsOf(*newest);
    ahead.push_back(shape.look_ahead ? Forecast(before, after) : after);
  }
  return losses;
}

class GptOverlap : public ::testing::TestWithParam<bool> {};

TEST_P(GptOverlap, AnyCutDoesWhatTheAlgorithmDoes) {
  WorldShape shape = Overlapped();
  shape.look_ahead = GetParam();
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  const std::vector<double> alone = RunAlone(shape, corpus);
  ASSERT_THAT(alone, SizeIs(shape.steps));
  for (int stages : {1, 2, 4}) {
    for (const bool flat : {false, true}) {
      shape.stages = stages;
      const std::vector<double> losses = RunWith(shape, corpus, flat);
      ASSERT_THAT(losses, SizeIs(alone.size()));
      // Flat parameters compute in bf16.
      const double tolerance = flat ? 0.02 : kTolerance;
      for (size_t i = 0; i < alone.size(); ++i)
        EXPECT_NEAR(losses[i], alone[i], tolerance * alone[i])
            << stages << " stages" << (flat ? ", flat" : "") << ", step " << i;
      EXPECT_EQ(RunWith(shape, corpus, flat), losses) << "again";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LookAhead, GptOverlap, ::testing::Bool());

TEST(GptOverlapLearns, WhatWaitingLearns) {
  WorldShape shape = Overlapped();
  shape.steps = 120;
  shape.look_ahead = true;
  shape.learning_rate = 1e-3;
  shape.stages = 2;
  shape.checkpoint_every = 0;
  shape.forward = "delta(quant(4))";
  shape.backward = "quant(8)";
  shape.check_buffers = true;
  const TextCorpus corpus(GenerateText(2000, 1), shape.context, 20);
  const double overlapped = MeanOfLast(RunWith(shape, corpus, false), 10);
  shape.schedule = "1f1b";
  shape.look_ahead = false;
  const double waiting = MeanOfLast(RunWith(shape, corpus, false), 10);
  RecordProperty("overlapped", std::to_string(overlapped));
  RecordProperty("waiting", std::to_string(waiting));
  EXPECT_LT(overlapped, 1.01 * waiting);
}

}  // namespace
}  // namespace isthmus::worker
