// Streaming local steps: fragments of the weights that replicas agree on one after the other, while
// training goes on (arXiv 2501.18512). With a stage of exact arithmetic they do what a few lines of
// the algorithm do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/plan/agreements.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

WorldShape Streaming(std::vector<int> replicas, int stages) {
  WorldShape shape;
  shape.replicas = std::move(replicas);
  shape.stages = stages;
  shape.local_steps = 6;
  shape.steps = 26;
  shape.fragments = 3;
  return shape;
}

// One fragment of whole models, in their OWN set.
struct Piece {
  int64_t first = 0, count = 0;
};
std::vector<Piece> PiecesOf(const Plan& plan, const Stage& stage, int fragment) {
  std::vector<Piece> pieces;
  int64_t begin = 0;
  int layer = 0;
  for (const int64_t end : stage.LayerEnds()) {
    if (fragment < 0 || FragmentOf(plan.job(), layer) == fragment)
      pieces.push_back({begin, end - begin});
    begin = end;
    ++layer;
  }
  return pieces;
}

// The algorithm: whole models, one after the other.
Outcome RunAlone(const WorldShape& shape) {
  WorldShape one = shape;
  one.stages = 1;
  const Plan plan = MakePlan(one);
  const FakeCorpus corpus(23, 9, shape.context, shape.vocabulary);
  std::vector<std::unique_ptr<Stage>> stages;
  for (size_t r = 0; r < shape.replicas.size(); ++r) {
    stages.push_back(FakeStages()(plan, 0).value());
    EXPECT_TRUE(stages.back()->BeginRounds().ok());
  }
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  Agreement next = NextAgreement(plan, 0, false);
  std::map<int64_t, std::vector<float>> mean;  // of the pieces under way, by their first element
  Outcome outcome;
  for (int64_t step = 0; step < shape.steps; ++step) {
    double loss = 0;
    for (size_t r = 0; r < stages.size(); ++r) {
      const std::vector<uint32_t> ids = orders[r].Step(step);
      loss += RunPasses(stages[r].get(), corpus, ids, shape,
                        1.0 / static_cast<double>(ids.size() * shape.context));
      ApplyStep(stages[r].get(), plan.job().recipe(), step);
    }
    outcome.losses.push_back(loss / static_cast<double>(shape.global_batch * shape.context));
    const std::vector<Piece> pieces = PiecesOf(plan, *stages[0], next.fragment);
    for (size_t r = 0; r < stages.size() && step == next.offer; ++r) {
      const double share = static_cast<double>(shape.replicas[r]) / shape.global_batch;
      for (const Piece& p : pieces) {
        std::vector<float> d(p.count);
        EXPECT_TRUE(stages[r]->ReadDifference(GroupPlan::OWN, p.first, absl::MakeSpan(d)).ok());
        for (float& x : d) x = static_cast<float>(share * x);
        std::vector<float>& sum = mean[p.first];
        if (r == 0) sum.assign(p.count, 0);
        for (int64_t i = 0; i < p.count; ++i) sum[i] = r == 0 ? d[i] : sum[i] + d[i];
      }
    }
    if (step < next.apply) continue;
    OuterStep outer{shape.outer_learning_rate, shape.outer_momentum};
    outer.mix = next.of_all() ? 0 : plan.job().strategy().fragment_mix();
    for (const auto& stage : stages) {
      for (const Piece& p : pieces)
        EXPECT_TRUE(stage->ApplyDifference(GroupPlan::OWN, p.first, mean[p.first], outer).ok());
    }
    next = NextAgreement(plan, step + 1, false);
  }
  outcome.weights = WeightsOf(*stages[0]);
  EXPECT_EQ(WeightsOf(*stages.back()), outcome.weights) << "T11.3";
  return outcome;
}

TEST(Streaming, AnyNumberAndAnyCutDoesWhatTheAlgorithmDoes) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {1, 5, 1}}) {
    for (const auto& [fragments, delay] : {std::pair{3, 0}, {3, 1}, {2, 2}, {1, 5}, {6, 0}}) {
      WorldShape shape = Streaming(replicas, 1);
      shape.fragments = fragments;
      shape.fragment_delay = delay;
      shape.eval_every = 10;
      const Outcome alone = RunAlone(shape);
      for (int stages : {1, 2, 4}) {
        SCOPED_TRACE(testing::Message() << replicas.size() << " x " << stages << ", " << fragments
                                        << " fragments, delay " << delay);
        shape.stages = stages;
        const Outcome world = RunToTheEnd(shape);
        EXPECT_THAT(world.losses, Pointwise(DoubleNear(1e-12), alone.losses));
        EXPECT_EQ(world.weights, alone.weights);
      }
    }
  }
}

// T11.4: one fragment without delay is DiLoCo bit for bit.
TEST(Streaming, OneFragmentWithoutDelayIsDiLoCo) {
  for (const char* codec : {"none", "ef(quant(4, token, symmetric))"}) {
    WorldShape shape = Streaming({4, 3}, 2);
    shape.gradients = codec;
    shape.fragments = 1;
    const Outcome diloco = RunToTheEnd(shape);
    shape.fragment_mix = 0;
    const Outcome streaming = RunToTheEnd(shape);
    EXPECT_EQ(streaming.losses, diloco.losses);
    EXPECT_EQ(streaming.weights, diloco.weights);
    shape.fragments = 2;
    EXPECT_NE(RunToTheEnd(shape).weights, diloco.weights) << "fragments change nothing";
    shape.fragment_delay = 2;
    shape.fragment_mix = 0.5;
    const Outcome half = RunToTheEnd(shape);
    shape.fragment_mix = 0.25;
    EXPECT_NE(RunToTheEnd(shape).weights, half.weights) << "the mix changes nothing";
  }
}

// T11.3: after the last step all hold the same bits, with any codec.
TEST(Streaming, AllReplicasEndWithTheSameWeights) {
  for (const char* codec : {"none", "ef(quant(3, token, symmetric))", "ef(topk(0.25))"}) {
    for (int stages : {1, 2}) {
      WorldShape shape = Streaming({3, 2, 2}, stages);
      shape.fragment_delay = 1;
      shape.gradients = codec;
      std::map<int, Stage*> stage_of;  // by rank; the sessions own them
      Mutex mutex;
      World::Options options;
      options.make_stage = [&](const Plan& plan, int rank) {
        auto stage = FakeStages()(plan, rank);
        MutexLock lock(&mutex);
        stage_of[rank] = stage->get();
        return stage;
      };
      World world(MakePlan(shape), options);
      for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
      for (int r = stages; r < 3 * stages; ++r)
        EXPECT_EQ(WeightsOf(*stage_of[r]), WeightsOf(*stage_of[r % stages]))
            << codec << ", rank " << r;
    }
  }
}

// Of all weights, at the end of a round: what is asked for, and what is due.
TEST(Streaming, AStopWaitsForTheEndOfTheRound) {
  for (int delay : {0, 1}) {
    WorldShape shape = Streaming({4, 3}, 2);
    shape.fragment_delay = delay;
    shape.steps = 6000;
    World world(MakePlan(shape));
    world.Start();
    world.session(3).RequestStop();
    for (const absl::Status& status : world.Join()) EXPECT_TRUE(status.ok()) << status;
    std::set<int64_t> ends;
    for (int r = 0; r < 4; ++r) ends.insert(world.session(r).step());
    EXPECT_EQ(ends.size(), 1u);
    EXPECT_EQ(*ends.begin() % shape.local_steps, 0);
    EXPECT_LT(*ends.begin(), 6000);
    EXPECT_THAT(world.store().complete_steps(), Contains(*ends.begin()));
  }
}

TEST(Streaming, CheckpointsAndValidationsAreOfWeightsThatAllHold) {
  WorldShape shape = Streaming({4, 3}, 2);
  shape.fragment_delay = 1;
  shape.steps = 30;
  shape.checkpoint_every = 8;
  shape.eval_every = 13;
  World world(MakePlan(shape));
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  for (int64_t step : world.store().complete_steps()) EXPECT_EQ(step % 6, 0) << step;
  EXPECT_THAT(world.store().complete_steps(), Contains(12));
  std::set<int64_t> validated;
  for (const StepRecord& record : world.observer(1).records()) {
    if (record.has_validation_loss()) validated.insert(record.step() + 1);
  }
  EXPECT_THAT(validated, ::testing::ElementsAre(18, 30));
}

// A checkpoint that is asked for in the middle comes at the end of the round, on all ranks.
TEST(Streaming, ACheckpointThatIsAskedForComesAtTheEndOfTheRound) {
  WorldShape shape = Streaming({4, 3}, 2);
  shape.steps = 600;
  World world(MakePlan(shape));
  world.session(2).RequestCheckpoint();
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(world.store().complete_steps(), ::testing::ElementsAre(6, 600));
}

// The outer momentum and the codecs' residuals go with checkpoints.
TEST(Streaming, AResumeGoesOnFromWeightsThatAllHold) {
  WorldShape shape = Streaming({4, 3}, 2);
  shape.fragment_delay = 1;
  shape.steps = 24;
  shape.checkpoint_every = 12;
  MemoryStore store;
  World::Options options;
  options.store = &store;
  World whole(MakePlan(shape), options);
  for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
  World again(MakePlan(shape, 2, 12), options);
  for (const absl::Status& status : again.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(again.session(0).step(), 24);
}

// The outer momenta, by name.
std::map<std::string, std::vector<float>> MomentaOf(Stage* stage) {
  std::map<std::string, std::vector<float>> values;
  const std::vector<StageTensor> tensors = stage->Tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].kind != StageTensor::kOuterMomentum) continue;
    std::vector<float>& v = values[tensors[i].name];
    v.resize(tensors[i].elements());
    EXPECT_TRUE(stage->ReadTensor(static_cast<int>(i), 0, absl::MakeSpan(v)).ok());
  }
  return values;
}

// The records say which steps' samples count twice: those that were made since checkpoint 12 and
// are made again, each once (the job's reason says how many of them are lost).
void ExpectStepsMadeAgain(const Agreement& dying, const RecordingObserver& torn,
                          const RecordingObserver& again) {
  std::multiset<int64_t> before, anew;
  for (const StepRecord& record : torn.records()) before.insert(record.step());
  for (const StepRecord& record : again.records()) anew.insert(record.step());
  EXPECT_EQ(anew.size(), 48u);
  for (int64_t step = 0; step < 60; ++step) {
    EXPECT_EQ(anew.count(step), step >= 12 ? 1u : 0u) << step;
    // Before it is applied each may go on by itself.
    EXPECT_GE(before.count(step), step <= dying.offer ? 1u : 0u) << step;
    EXPECT_LE(before.count(step), step < dying.apply ? 1u : 0u) << step;
  }
}

// T11.6: a replica dies when its fragment is offered and not applied yet. No other rank applies it;
// the outer momentum, which nothing but an agreement moves, is the same on all, and the samples of
// the steps since the last checkpoint are read again from there.
TEST(Streaming, OneThatDiesBetweenOfferAndApplyLeavesTheOthersEqual) {
  WorldShape shape = Streaming({3, 2, 2}, 1);
  shape.fragments = 2;
  shape.fragment_delay = 2;
  shape.steps = 60;
  shape.checkpoint_every = 12;
  const Plan plan = MakePlan(shape);
  Agreement dying = NextAgreement(plan, 12, false);  // the first one after the checkpoint
  ASSERT_FALSE(dying.of_all());
  MemoryStore store;
  std::map<int, Stage*> stage_of;
  Mutex mutex;
  World::Options options;
  options.store = &store;
  const auto fakes = [&](const StageHook& hook) {
    return [&, hook](const Plan& p, int rank) {
      auto stage = FakeStages(hook)(p, rank);
      MutexLock lock(&mutex);
      stage_of[rank] = stage->get();
      return stage;
    };
  };
  std::set<int> there;  // of the others, those that have applied what came before
  CondVar moved;
  options.make_stage = fakes(
      [&](int rank, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (step != dying.offer + 1 || operation != "forward") return StageFault();
        MutexLock lock(&mutex);
        if (rank != 1) {
          there.insert(rank);
          moved.SignalAll();
          return StageFault();
        }
        while (there.size() < 2) moved.Wait(&mutex);
        // The checkpoint is stored beside the steps.
        const auto until = SteadyAfter(absl::Seconds(60));
        while (store.complete_steps().empty() && std::chrono::steady_clock::now() < until)
          moved.WaitUntil(&mutex, SteadyAfter(absl::Milliseconds(1)));
        return absl::InternalError("the fan stopped");
      });
  World world(plan, options);
  for (const absl::Status& status : world.Run())
    EXPECT_THAT(std::string(status.message()), HasSubstr("the fan stopped"));
  EXPECT_EQ(MomentaOf(stage_of[0]).size(), 9u);
  EXPECT_EQ(MomentaOf(stage_of[2]), MomentaOf(stage_of[0]));
  EXPECT_EQ(MomentaOf(stage_of[1]), MomentaOf(stage_of[0])) << "and it had not applied it either";
  EXPECT_THAT(store.complete_steps(), Contains(12));
  // Two go on from the checkpoint; each sample of the batches after it is read once.
  WorldShape left = Streaming({4, 3}, 1);
  left.steps = shape.steps;
  options.make_stage = nullptr;
  World again(MakePlan(left, 2, 12), options);
  for (const absl::Status& status : again.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(again.session(1).step(), 60);
  ExpectStepsMadeAgain(dying, world.observer(0), again.observer(0));
}

// What crosses is of one fragment at a time.
TEST(Streaming, AStepCarriesAFractionOfTheWeights) {
  WorldShape shape = Streaming({4, 3}, 1);
  const auto most = [&](int fragments) {
    shape.fragments = fragments;
    World world(MakePlan(shape));
    for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
    int64_t most = 0;
    for (const StepRecord& record : world.observer(0).records()) {
      int64_t raw = 0;
      for (const GroupRecord& group : record.groups()) {
        EXPECT_EQ(group.group_id(), "stage 0");
        raw += group.raw_bytes();
      }
      if (record.step() + 1 < shape.steps) most = std::max(most, raw);
    }
    return most;
  };
  shape.hidden = 512;  // a layer is a row
  shape.vocabulary = 8;
  EXPECT_EQ(most(1), 2 * 8 * 512 * 4);
  EXPECT_LT(most(4), most(1));
}

}  // namespace
}  // namespace isthmus::worker
