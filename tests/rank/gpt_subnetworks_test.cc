// Independent subnetworks with the real engine: what ranks do over links is what the algorithm does
// in one process, bit for bit; deals move weights and change none of them; the merged model learns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/safetensors.h"
#include "proto/plan/agreements.h"
#include "proto/plan/deal.h"
#include "tests/rank/gpt_world.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/stage_files.h"

namespace isthmus::worker {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WorldShape Subnetworks(std::vector<int> replicas, int stages = 1) {
  WorldShape shape = SmallGpt();
  shape.stages = stages;
  shape.replicas = std::move(replicas);
  shape.subnetworks = true;
  shape.local_steps = 4;
  shape.steps = 18;  // the last round has two
  shape.outer_learning_rate = 1;
  shape.outer_momentum = 0;
  return shape;
}

// Of an MLP, whose replicas are one stage each.
WorldShape MlpSubnetworks(std::vector<int> replicas) {
  WorldShape shape = SmallMlp();
  shape.stages = 1;
  shape.global_batch = 0;
  for (const int samples : replicas) shape.global_batch += samples;
  shape.replicas = std::move(replicas);
  shape.subnetworks = true;
  shape.local_steps = 4;
  shape.steps = 18;
  shape.outer_learning_rate = 1;
  shape.outer_momentum = 0;
  return shape;
}

const RowCorpus& Rows() {
  static const auto* const corpus = new RowCorpus(300, 20, 5, 60);
  return *corpus;
}

const TextCorpus& Text() {
  static const auto* const corpus = new TextCorpus(GenerateText(4000, 1), 16, 20);
  return *corpus;
}

struct Trained {
  std::vector<double> losses;  // of each step, of all replicas together
  std::vector<double> validation, accuracy;
  std::string weights;
  int64_t group_bytes = 0;
};

Trained RunSubnetworks(const WorldShape& shape, const Corpus& corpus, MemoryStore* store = nullptr,
                       uint64_t generation = 1, int64_t start = 0) {
  MemoryStore own;
  MemoryStates states;
  World::Options options = GptOptions(store != nullptr ? store : &own, &corpus);
  options.codec_states = &states;
  World world(MakePlan(shape, generation, start), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  Trained run;
  run.losses = world.Losses();
  run.weights = world.Weights(shape.steps);
  for (int r = 0; r < world.plan().ranks_size(); ++r) {
    for (const StepRecord& record : world.observer(r).records()) {
      if (record.has_validation_loss()) run.validation.push_back(record.validation_loss());
      if (record.has_validation_accuracy()) run.accuracy.push_back(record.validation_accuracy());
      for (const DirectionBytes& d : record.directions())
        run.group_bytes += d.link_id()[0] == 'g' ? d.wire_bytes() : 0;
    }
  }
  return run;
}

// What all replicas agree on: the mean of what is shared, weighted by samples.
void ShareDifferences(const WorldShape& shape, const std::vector<std::unique_ptr<Stage>>& stages) {
  const int64_t elements = stages[0]->Elements(GroupPlan::OWN);
  std::vector<float> mean(elements), d(elements);
  for (size_t r = 0; r < stages.size(); ++r) {
    ASSERT_TRUE(stages[r]->ReadDifference(GroupPlan::OWN, 0, absl::MakeSpan(d)).ok());
    const double share = static_cast<double>(shape.replicas[r]) / shape.global_batch;
    for (int64_t i = 0; i < elements; ++i) {
      const auto part = static_cast<float>(share * d[i]);
      mean[i] = r == 0 ? part : mean[i] + part;
    }
  }
  for (const auto& stage : stages)
    ASSERT_TRUE(stage->ApplyDifference(GroupPlan::OWN, 0, mean, {1, 0}).ok());
}

// Each unit goes to who holds it next.
void DealAnew(const Plan& plan, int64_t step, const std::vector<std::unique_ptr<Stage>>& stages) {
  const int n = static_cast<int>(stages.size());
  std::map<std::pair<int, int>, std::vector<float>> moved;
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      const Slice units = Moves(plan, from, to, step, false);
      std::vector<float>& values = moved[{from, to}];
      values.resize(SliceElements(plan.job().model(), units));
      ASSERT_TRUE(stages[from]->OfSlice()->Read(units, absl::MakeSpan(values)).ok());
    }
  }
  for (int to = 0; to < n; ++to) {
    StageSlice* slice = stages[to]->OfSlice();
    ASSERT_TRUE(slice->Hold(SliceOf(plan, to, RoundOf(plan, step) + 1)).ok());
    for (int from = 0; from < n; ++from)
      ASSERT_TRUE(slice->Write(Moves(plan, from, to, step, false), moved[{from, to}]).ok());
  }
}

// The algorithm, without ranks and links.
Trained TrainAlone(WorldShape shape, const Corpus& corpus) {
  shape.stages = 1;
  const Plan plan = MakePlan(shape);
  const int n = static_cast<int>(shape.replicas.size());
  std::vector<std::unique_ptr<Stage>> stages;
  for (int r = 0; r < n; ++r) {
    stages.push_back(GptStages()(plan, r).value());
    EXPECT_TRUE(stages.back()->BeginRounds().ok());
  }
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  Trained run;
  for (int64_t step = 0; step < shape.steps; ++step) {
    double loss = 0;
    for (int r = 0; r < n; ++r) {
      const std::vector<uint32_t> ids = orders[r].Step(step);
      loss += RunPasses(stages[r].get(), corpus, ids, shape,
                        1.0 / static_cast<double>(ids.size() * shape.context));
      ApplyStep(stages[r].get(), plan.job().recipe(), step);
    }
    run.losses.push_back(loss / static_cast<double>(shape.global_batch * shape.context));
    if (!RoundEndsAfter(plan, step)) continue;
    ShareDifferences(shape, stages);
    if (step + 1 < shape.steps) DealAnew(plan, step, stages);
  }
  StageSlice* whole = stages[0]->OfSlice();
  EXPECT_TRUE(whole->BeginWhole().ok());
  for (int r = 1; r < n; ++r) {
    const Slice units = SliceOf(plan, r, RoundOf(plan, shape.steps - 1));
    std::vector<float> values(SliceElements(plan.job().model(), units));
    EXPECT_TRUE(stages[r]->OfSlice()->Read(units, absl::MakeSpan(values)).ok());
    EXPECT_TRUE(whole->WriteWhole(units, values).ok());
  }
  run.weights = WeightsOf(*stages[0]);
  return run;
}

void ExpectSameWeights(const Trained& a, const Trained& b) {
  // The checkpoint names tensors without their prefix; values are what counts.
  const auto of_a = ParseSafetensors(a.weights).value(), of_b = ParseSafetensors(b.weights).value();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (const auto& [name, tensor] : of_a) EXPECT_TRUE(of_b.at(name).data == tensor.data) << name;
}

TEST(MlpSubnetworks, RanksDoWhatTheAlgorithmDoes) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {3, 2, 2}, {5, 1, 1}}) {
    const WorldShape shape = MlpSubnetworks(replicas);
    const Trained alone = TrainAlone(shape, Rows()), run = RunSubnetworks(shape, Rows());
    ASSERT_EQ(run.losses.size(), alone.losses.size());
    for (size_t i = 0; i < run.losses.size(); ++i)
      EXPECT_NEAR(run.losses[i], alone.losses[i], 1e-12) << replicas.size() << ", step " << i;
    ExpectSameWeights(run, alone);
  }
}

// T5.8: deals and merges alone change no bit.
TEST(MlpSubnetworks, WithoutLearningEveryWeightIsAsBefore) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {2, 2, 2, 1}}) {
    WorldShape shape = MlpSubnetworks(replicas);
    shape.learning_rate = 0;
    shape.eval_every = 8;
    const Trained run = RunSubnetworks(shape, Rows());
    WorldShape one = shape;
    one.replicas.clear();
    one.subnetworks = false;
    one.local_steps = 1;
    const Trained ordinary = RunSubnetworks(one, Rows());
    EXPECT_TRUE(run.weights == ordinary.weights) << replicas.size();
    ASSERT_EQ(run.validation.size(), 3);
    for (const double loss : run.validation) EXPECT_EQ(loss, ordinary.validation[0]);
  }
}

TEST(MlpSubnetworks, AResumeEqualsARunThatWasNotInterrupted) {
  for (const char* codec : {"none", "bf16"}) {
    WorldShape shape = MlpSubnetworks({4, 3});
    shape.constant_rate = true;
    shape.gradients = codec;
    shape.checkpoint_every = 8;
    shape.steps = 16;
    MemoryStore whole_store, store;
    const Trained whole = RunSubnetworks(shape, Rows(), &whole_store);
    shape.steps = 8;
    RunSubnetworks(shape, Rows(), &store);
    shape.steps = 16;
    const Trained on = RunSubnetworks(shape, Rows(), &store, 2, 8);
    EXPECT_TRUE(on.weights == whole.weights) << codec;
    for (int i = 8; i < 16; ++i) EXPECT_EQ(on.losses[i], whole.losses[i]) << codec << i;
  }
}

TEST(MlpSubnetworks, LearnForAFractionOfTheBytesOfLocalSteps) {
  WorldShape shape = MlpSubnetworks({4, 4, 4, 4});
  shape.hidden = 64;
  shape.layers = 2;
  shape.learning_rate = 3e-3;
  shape.steps = 200;
  shape.local_steps = 10;
  shape.eval_samples = 60;
  const auto train = [&](const char* name) {
    const Trained run = RunSubnetworks(shape, Rows());
    std::printf("%-28s accuracy of the merged model %.3f, %.3f MB\n", name, run.accuracy.back(),
                1e-6 * static_cast<double>(run.group_bytes));
    return run;
  };
  shape.subnetworks = false;
  const Trained local = train("local steps");
  shape.subnetworks = true;
  const Trained none = train("subnetworks, none");
  shape.gradients = "bf16";
  const Trained bf16 = train("subnetworks, bf16");
  EXPECT_GT(local.accuracy.back(), 0.9);
  EXPECT_GT(none.accuracy.back(), 0.9);
  EXPECT_GT(bf16.accuracy.back(), 0.9);
  // 3 / 4 of the model a round among all, in place of 2 x 3; headers of frames, and the merge.
  EXPECT_LT(none.group_bytes, 0.3 * local.group_bytes);
  EXPECT_LT(bf16.group_bytes, 0.6 * none.group_bytes);
}

TEST(GptSubnetworks, RanksDoWhatTheAlgorithmDoes) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {3, 2, 2}, {5, 1, 1}}) {
    for (const int whole_layers : {0, 1}) {
      WorldShape shape = Subnetworks(replicas);
      shape.whole_layers = whole_layers;
      const Trained alone = TrainAlone(shape, Text());
      const Trained run = RunSubnetworks(shape, Text());
      ASSERT_EQ(run.losses.size(), alone.losses.size());
      for (size_t i = 0; i < run.losses.size(); ++i)
        EXPECT_NEAR(run.losses[i], alone.losses[i], 1e-12) << replicas.size() << ", step " << i;
      ExpectSameWeights(run, alone);
      // Pipelines of two stages differ in the order of sums alone.
      shape.stages = 2;
      const Trained piped = RunSubnetworks(shape, Text());
      for (size_t i = 0; i < run.losses.size(); ++i)
        EXPECT_NEAR(piped.losses[i], alone.losses[i], 2e-5 * alone.losses[i])
            << replicas.size() << " x 2, step " << i;
    }
  }
}

// A stage may have none but layers that are whole in every slice: it deals nothing.
TEST(GptSubnetworks, StagesOfWholeLayersTrainAndValidate) {
  WorldShape shape = Subnetworks({4, 3}, 4);
  shape.whole_layers = 1;
  shape.steps = 8;
  shape.checkpoint_every = 4;
  shape.eval_every = 4;
  MemoryStore store;
  const Trained run = RunSubnetworks(shape, Text(), &store);
  EXPECT_THAT(store.complete_steps(), ElementsAre(4, 8));
  shape.stages = 1;
  const Trained one = RunSubnetworks(shape, Text());
  ASSERT_EQ(run.validation.size(), one.validation.size());
  for (size_t i = 0; i < run.validation.size(); ++i)
    EXPECT_NEAR(run.validation[i], one.validation[i], 2e-5 * one.validation[i]);
}

// T5.8: deals and merges alone change no bit.
TEST(GptSubnetworks, WithoutLearningEveryWeightIsAsBefore) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {3, 2, 2}, {2, 2, 2, 1}}) {
    for (const int stages : {1, 2}) {
      if (stages == 2 && replicas.size() > 2) continue;
      WorldShape shape = Subnetworks(replicas, stages);
      shape.learning_rate = 0;
      shape.eval_every = 8;
      const Trained run = RunSubnetworks(shape, Text());
      WorldShape one = shape;
      one.replicas.clear();
      one.subnetworks = false;
      one.local_steps = 1;
      const Trained ordinary = RunSubnetworks(one, Text());
      EXPECT_TRUE(run.weights == ordinary.weights) << replicas.size() << " x " << stages;
      ASSERT_EQ(run.validation.size(), 3);
      for (const double loss : run.validation) EXPECT_EQ(loss, ordinary.validation[0]);
    }
  }
}

// Checkpoints are ordinary ones: of any shape, with replicas or without.
TEST(GptSubnetworks, CheckpointsAreOfTheWholeModel) {
  MemoryStore store;
  WorldShape shape = Subnetworks({4, 3}, 2);
  shape.steps = 16;
  shape.checkpoint_every = 8;
  shape.eval_every = 8;
  const Trained run = RunSubnetworks(shape, Text(), &store);
  EXPECT_THAT(store.complete_steps(), ElementsAre(8, 16));
  // The merged model's validation is that of an ordinary one with these weights.
  WorldShape ordinary = SmallGpt();
  ordinary.stages = 1;
  ordinary.steps = 17;
  ordinary.learning_rate = 0;
  ordinary.eval_every = 1;
  MemoryStore copy(store);
  const Trained next = RunSubnetworks(ordinary, Text(), &copy, 2, 16);
  EXPECT_NEAR(next.validation.back(), run.validation.back(), 1e-6);
  // Local steps go on from it, and other slices do.
  WorldShape local = shape;
  local.subnetworks = false;
  local.steps = 24;
  MemoryStore for_local(store);
  const Trained on = RunSubnetworks(local, Text(), &for_local, 2, 16);
  EXPECT_LT(on.losses.back(), run.losses.front());
  WorldShape three = Subnetworks({3, 2, 2});
  three.steps = 24;
  MemoryStore for_three(store);
  EXPECT_LT(RunSubnetworks(three, Text(), &for_three, 2, 16).losses.back(), run.losses.front());
}

TEST(GptSubnetworks, AResumeEqualsARunThatWasNotInterrupted) {
  for (const char* codec : {"none", "bf16"}) {
    WorldShape shape = Subnetworks({4, 3}, 2);
    shape.constant_rate = true;
    shape.gradients = codec;
    shape.checkpoint_every = 8;
    shape.steps = 16;
    MemoryStore whole_store, store;
    const Trained whole = RunSubnetworks(shape, Text(), &whole_store);
    shape.steps = 8;
    RunSubnetworks(shape, Text(), &store);
    shape.steps = 16;
    const Trained on = RunSubnetworks(shape, Text(), &store, 2, 8);
    EXPECT_TRUE(on.weights == whole.weights) << codec;
    for (int i = 8; i < 16; ++i) EXPECT_EQ(on.losses[i], whole.losses[i]) << codec << i;
  }
}

// A stop waits until the model has come together, at most two rounds.
TEST(GptSubnetworks, AStopWaitsForTheWholeModel) {
  for (int asked = 0; asked < 4; ++asked) {
    WorldShape shape = Subnetworks({4, 3}, 2);
    shape.steps = 4000;
    MemoryStore store;
    World world(MakePlan(shape), GptOptions(&store, &Text()));
    world.Start();
    world.session(asked).RequestStop();
    for (const absl::Status& status : world.Join()) EXPECT_TRUE(status.ok()) << status;
    std::set<int64_t> ends;
    for (int r = 0; r < 4; ++r) ends.insert(world.session(r).step());
    EXPECT_THAT(ends, ElementsAre(8)) << asked;
    EXPECT_THAT(store.complete_steps(), Contains(8));
    EXPECT_THAT(world.Weights(8), HasSubstr("h.3.mlp.c_fc.weight"));
  }
}

// Text whose 150th sample is read when something happens.
class EventfulCorpus : public Corpus {
 public:
  explicit EventfulCorpus(std::function<void()> event) : event_(std::move(event)) {}
  int64_t train_samples() const override { return Text().train_samples(); }
  int64_t validation_samples() const override { return Text().validation_samples(); }
  int64_t context() const override { return Text().context(); }
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override {
    if (++reads_ == 150) event_();
    return Text().Read(id, tokens, targets);
  }
  uint64_t fingerprint() const override { return Text().fingerprint(); }

 private:
  const std::function<void()> event_;
  mutable std::atomic<int> reads_{0};
};

TEST(GptSubnetworks, ARankThatDiesEndsTheOthersInWords) {
  for (int dead = 0; dead < 3; ++dead) {
    WorldShape shape = Subnetworks({3, 2, 2});
    shape.steps = 4000;
    MemoryStore store;
    World* running = nullptr;
    const EventfulCorpus corpus(
        [&] { running->session(dead).Cancel(absl::UnavailableError("the host is gone")); });
    World world(MakePlan(shape), GptOptions(&store, &corpus));
    running = &world;
    for (const absl::Status& status : world.Run())
      EXPECT_THAT(std::string(status.message()), HasSubstr("the host is gone"));
    EXPECT_THAT(store.complete_steps(), ::testing::IsEmpty());
  }
}

// What the mode is for: a fraction of the bytes of local steps, and about their loss.
TEST(GptSubnetworks, LearnAboutAsWellAsLocalStepsForFewerBytes) {
  WorldShape shape = Subnetworks({4, 4});
  shape.global_batch = 8;
  shape.steps = 120;
  shape.local_steps = 10;
  shape.eval_samples = 20;
  const TextCorpus corpus(GenerateText(8000, 1), shape.context, 20);
  const auto train = [&](const char* name) {
    const Trained run = RunSubnetworks(shape, corpus);
    std::printf("%-28s loss %.4f, validation of the merged model %.4f, %.2f MB\n", name,
                MeanOfLast(run.losses, 10), run.validation.back(),
                1e-6 * static_cast<double>(run.group_bytes));
    return run;
  };
  shape.subnetworks = false;
  const Trained local = train("local steps");
  shape.subnetworks = true;
  const Trained none = train("subnetworks, none");
  shape.gradients = "bf16";
  const Trained bf16 = train("subnetworks, bf16");
  const double first = local.losses.front();
  ASSERT_LT(local.validation.back(), 0.6 * first);
  for (const Trained* run : {&none, &bf16})
    EXPECT_LT(run->validation.back(), 1.25 * local.validation.back());
  EXPECT_LT(none.group_bytes, 0.5 * local.group_bytes);
  EXPECT_LT(bf16.group_bytes, 0.55 * none.group_bytes);
  EXPECT_NE(bf16.losses, none.losses);
}

}  // namespace
}  // namespace isthmus::worker
