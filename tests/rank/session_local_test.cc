// Local steps: replicas that train by themselves and then agree on the weights (DiLoCo). With a
// stage of exact arithmetic they do what a few lines of the algorithm do, whatever the cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/mutex.h"
#include "base/safetensors.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

WorldShape Local(std::vector<int> replicas, int stages) {
  WorldShape shape;
  shape.replicas = std::move(replicas);
  shape.stages = stages;
  shape.local_steps = 3;
  shape.steps = 8;  // the last round has two
  return shape;
}

// The algorithm: whole models, one after the other; every agreement is of all elements.
Outcome RunAlone(const WorldShape& shape) {
  WorldShape one = shape;
  one.stages = 1;
  one.replicas.clear();
  const Plan plan = MakePlan(one);
  const FakeCorpus corpus(23, 9, shape.context, shape.vocabulary);
  std::vector<std::unique_ptr<Stage>> stages;
  for (size_t r = 0; r < shape.replicas.size(); ++r) {
    stages.push_back(FakeStages()(plan, 0).value());
    EXPECT_TRUE(stages.back()->BeginRounds().ok());
  }
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  Outcome outcome;
  for (int64_t step = 0; step < shape.steps; ++step) {
    double loss = 0;
    for (size_t r = 0; r < stages.size(); ++r) {
      Stage& stage = *stages[r];
      const std::vector<uint32_t> ids = orders[r].Step(step);
      loss += RunPasses(&stage, corpus, ids, shape,
                        1.0 / static_cast<double>(ids.size() * shape.context));
      ApplyStep(&stage, plan.job().recipe(), step);
    }
    outcome.losses.push_back(loss / static_cast<double>(shape.global_batch * shape.context));
    if ((step + 1) % shape.local_steps != 0 && step + 1 != shape.steps) continue;
    const int64_t elements = stages[0]->Elements(GroupPlan::OWN);
    std::vector<float> mean(elements), d(elements);
    for (size_t r = 0; r < stages.size(); ++r) {
      EXPECT_TRUE(stages[r]->ReadDifference(GroupPlan::OWN, 0, absl::MakeSpan(d)).ok());
      const double share = static_cast<double>(shape.replicas[r]) / shape.global_batch;
      for (int64_t i = 0; i < elements; ++i)
        mean[i] =
            r == 0 ? static_cast<float>(share * d[i]) : mean[i] + static_cast<float>(share * d[i]);
    }
    const OuterStep outer{shape.outer_learning_rate, shape.outer_momentum};
    for (const auto& stage : stages)
      EXPECT_TRUE(stage->ApplyDifference(GroupPlan::OWN, 0, mean, outer).ok());
  }
  outcome.weights = WeightsOf(*stages[0]);
  EXPECT_EQ(WeightsOf(*stages.back()), outcome.weights) << "T11.3";
  return outcome;
}

TEST(LocalSteps, AnyNumberAndAnyCutDoesWhatTheAlgorithmDoes) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {1, 5, 1}, {2, 1, 1, 2, 1}}) {
    const WorldShape shape = Local(replicas, 1);
    const Outcome alone = RunAlone(shape);
    for (int stages : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << replicas.size() << " x " << stages);
      const Outcome world = RunToTheEnd(Local(replicas, stages));
      EXPECT_THAT(world.losses, Pointwise(DoubleNear(1e-12), alone.losses));
      EXPECT_EQ(world.weights, alone.weights);
    }
  }
}

// T11.3: all hold the same bits after an agreement, with any codec.
TEST(LocalSteps, AllReplicasEndWithTheSameWeights) {
  for (const char* codec : {"none", "quant(4, token, symmetric)", "ef(topk(0.25))"}) {
    for (int stages : {1, 2, 3}) {
      WorldShape shape = Local({3, 2, 2}, stages);
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
      for (int r = stages; r < 3 * stages; ++r) {
        EXPECT_EQ(WeightsOf(*stage_of[r]), WeightsOf(*stage_of[r % stages]))
            << codec << ", rank " << r;
      }
      // Both ends of the tied embedding too.
      if (stages == 1) continue;
      const std::string tied = TiedOf(*stage_of[stages - 1]), own = WeightsOf(*stage_of[0]);
      EXPECT_EQ(ParseSafetensors(tied)->at("wte").data, ParseSafetensors(own)->at("wte").data);
    }
  }
}

// T11.2, and F56 (a peer alone used an averaged gradient of zero): a job of one replica trains as
// if neither replicas nor local steps were named, bit for bit, whatever the outer step is.
TEST(LocalSteps, AGroupOfOneIsARunWithoutThem) {
  for (const int stages : {1, 2, 3}) {
    WorldShape shape;
    shape.stages = stages;
    const Outcome plain = RunToTheEnd(shape);
    shape.replicas = {7};
    for (const int local_steps : {1, 3, 50}) {
      for (const auto& [rate, momentum] : {std::pair{1.0, 0.0}, {0.7, 0.9}}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, " << local_steps << ", " << rate);
        shape.local_steps = local_steps;
        shape.outer_learning_rate = rate;
        shape.outer_momentum = momentum;
        const Outcome one = RunToTheEnd(shape);
        EXPECT_EQ(one.losses, plain.losses);
        EXPECT_EQ(one.norms, plain.norms);
        EXPECT_EQ(one.weights, plain.weights);
      }
    }
  }
}

// A step that is not finite is skipped by its own replica alone.
TEST(LocalSteps, AReplicaSkipsItsOwnStep) {
  WorldShape shape = Local({4, 3}, 2);
  World::Options options;
  options.make_stage =
      FakeStages([](int rank, int64_t step, const std::string& what) -> absl::StatusOr<StageFault> {
        StageFault fault;
        fault.loss_is_nan = rank == 3 && step == 1 && what == "forward";
        return fault;
      });
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  for (int r = 0; r < 4; ++r) {
    for (const StepRecord& record : world.observer(r).records())
      EXPECT_EQ(record.committed(), !(r >= 2 && record.step() == 1)) << r << ", " << record.step();
  }
}

TEST(LocalSteps, AStopWaitsForTheAgreement) {
  WorldShape shape = Local({4, 3}, 2);
  shape.steps = 3000;
  World world(MakePlan(shape));
  world.Start();
  world.session(3).RequestStop();
  for (const absl::Status& status : world.Join()) EXPECT_TRUE(status.ok()) << status;
  std::set<int64_t> ends;
  for (int r = 0; r < 4; ++r) ends.insert(world.session(r).step());
  EXPECT_EQ(ends.size(), 1u);
  EXPECT_EQ(*ends.begin() % shape.local_steps, 0);
  EXPECT_LT(*ends.begin(), 3000);
  EXPECT_THAT(world.store().complete_steps(), ::testing::Contains(*ends.begin()));
}

// Checkpoints and validations wait for the first agreement at which they are due.
TEST(LocalSteps, CheckpointsAndValidationsAreOfAgreedWeights) {
  WorldShape shape = Local({4, 3}, 2);
  shape.steps = 12;
  shape.checkpoint_every = 4;
  shape.eval_every = 2;
  World world(MakePlan(shape));
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  for (int64_t step : world.store().complete_steps()) EXPECT_EQ(step % 3, 0) << step;
  EXPECT_THAT(world.store().complete_steps(), ::testing::Contains(6));
  std::set<int64_t> validated;
  for (const StepRecord& record : world.observer(1).records()) {
    if (record.has_validation_loss()) validated.insert(record.step() + 1);
  }
  EXPECT_THAT(validated, ::testing::ElementsAre(3, 6, 9, 12));
}

// The outer momentum goes with checkpoints; the inner moments of the first replica are those of all
// after a resume.
TEST(LocalSteps, AResumeGoesOnFromAgreedWeights) {
  for (int stages : {1, 2}) {
    WorldShape shape = Local({4, 3}, stages);
    shape.steps = 9;
    shape.checkpoint_every = 3;
    MemoryStore store;
    World::Options options;
    options.store = &store;
    World whole(MakePlan(shape), options);
    for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
    const std::string momentum = [&] {
      FetchCheckpointRequest request;
      request.set_job_id(whole.plan().job_id());
      request.set_step(6);
      request.set_what("optimizer");
      return store.FetchBytes(request).value_or("");
    }();
    EXPECT_THAT(momentum, ::testing::HasSubstr("outer_momentum"));
    World again(MakePlan(shape, 2, 6), options);
    for (const absl::Status& status : again.Run()) EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(again.session(0).step(), 9);
  }
}

// Each replica goes on with its own moments and its own count of skipped steps: bit for bit a run
// that was not interrupted. From a checkpoint of fewer replicas it takes those of the first one.
TEST(LocalSteps, AResumeEqualsARunThatWasNotInterrupted) {
  for (int stages : {1, 2}) {
    SCOPED_TRACE(stages);
    WorldShape shape = Local({4, 3}, stages);
    shape.constant_rate = true;
    shape.steps = 12;
    shape.checkpoint_every = 3;
    const auto run = [&](MemoryStore* store, MemoryStates* states, int steps, uint64_t generation,
                         int64_t start) {
      World::Options options;
      options.store = store;
      options.codec_states = states;
      options.make_stage = FakeStages(
          [stages](int rank, int64_t step, const std::string& what) -> absl::StatusOr<StageFault> {
            StageFault fault;
            fault.loss_is_nan = rank >= stages && step == 1 && what == "forward";
            return fault;
          });
      WorldShape part = shape;
      part.steps = steps;
      World world(MakePlan(part, generation, start), options);
      for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
      return Outcome{world.Losses(), {}, world.Weights(steps)};
    };
    MemoryStore whole_store, store;
    MemoryStates whole_states, states;
    const Outcome whole = run(&whole_store, &whole_states, 12, 1, 0);
    run(&store, &states, 6, 1, 0);
    MemoryStore lost(store);
    EXPECT_EQ(run(&store, &states, 12, 2, 6).weights, whole.weights);
    lost.LoseReplica(6, 1);
    EXPECT_NE(run(&lost, &states, 12, 3, 6).weights, whole.weights)
        << "moments of another replica change nothing: the test can't fail";
  }
}

}  // namespace
}  // namespace isthmus::worker
