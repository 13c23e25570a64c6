// How sessions end: stop, cancel, errors of a stage, numbers that are not finite, checkpoints that
// are slow or fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

void RunWell(World* world) {
  for (const absl::Status& status : world->Run()) EXPECT_TRUE(status.ok()) << status;
}

TEST(SessionEnd, StopInTheMiddleIsTheSameStepEverywhere) {
  for (int asked = 0; asked < 3; ++asked) {
    WorldShape shape;
    shape.stages = 3;
    shape.steps = 100000;
    World* running = nullptr;
    World::Options options;
    options.make_stage = FakeStages(
        [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
          if (stage == asked && step == 4 && operation == "backward")
            running->session(stage).RequestStop();
          return StageFault{};
        });
    World world(MakePlan(shape), options);
    running = &world;
    RunWell(&world);
    for (int stage = 0; stage < 3; ++stage)
      EXPECT_EQ(world.session(stage).step(), 5) << "asked " << asked;
    EXPECT_THAT(world.store().complete_steps(), ElementsAre(5));
    EXPECT_EQ(world.observer(0).events().back().state(), SessionEvent::FINISHED);
  }
}

TEST(SessionEnd, AnyStageMayAskForACheckpoint) {
  WorldShape shape;
  shape.stages = 3;
  World* running = nullptr;
  World::Options options;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 1 && step == 2 && operation == "forward")
          running->session(stage).RequestCheckpoint();
        return StageFault{};
      });
  World world(MakePlan(shape), options);
  running = &world;
  RunWell(&world);
  EXPECT_THAT(world.store().complete_steps(), ElementsAre(3, 6));
}

TEST(SessionEnd, AnErrorOfAStageIsToldEverywhere) {
  for (const char* operation : {"forward", "backward", "apply"}) {
    for (int broken = 0; broken < 4; ++broken) {
      WorldShape shape;
      shape.stages = 4;
      World::Options options;
      options.make_stage = FakeStages(
          [&](int stage, int64_t step, const std::string& op) -> absl::StatusOr<StageFault> {
            if (stage == broken && step == 2 && op == operation)
              return absl::InternalError("the fake broke");
            return StageFault{};
          });
      World world(MakePlan(shape), options);
      const std::vector<absl::Status> statuses = world.Run();
      for (int stage = 0; stage < 4; ++stage) {
        EXPECT_EQ(statuses[stage].code(), absl::StatusCode::kInternal) << statuses[stage];
        EXPECT_THAT(statuses[stage].message(),
                    HasSubstr(absl::StrCat("stage ", broken, " (node-", broken)));
        EXPECT_THAT(statuses[stage].message(), HasSubstr("failed at step 2: "));
        EXPECT_THAT(statuses[stage].message(), HasSubstr("the fake broke"));
        EXPECT_THAT(statuses[stage].message(), HasSubstr("Correct the cause"));
        const SessionEvent event = world.observer(stage).events().back();
        EXPECT_EQ(event.state(), SessionEvent::FAILED);
        EXPECT_EQ(event.message(), statuses[stage].message());
        EXPECT_EQ(event.code(), static_cast<int>(absl::StatusCode::kInternal));
      }
    }
  }
}

TEST(SessionEnd, AStepWithoutFiniteNumbersIsSkippedByAll) {
  for (const bool loss : {true, false}) {
    WorldShape shape;
    shape.stages = 3;
    World::Options options;
    options.make_stage = FakeStages(
        [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
          StageFault fault;
          if (step == 2)
            (loss ? fault.loss_is_nan : fault.norm_is_infinite) = stage == (loss ? 2 : 1);
          return fault;
        });
    World world(MakePlan(shape), options);
    RunWell(&world);
    for (int stage = 0; stage < 3; ++stage) {
      for (const StepRecord& r : world.observer(stage).records())
        EXPECT_EQ(r.committed(), r.step() != 2);
    }
  }
}

TEST(SessionEnd, SkippedStepsSurviveAResume) {
  WorldShape shape;
  shape.stages = 2;
  shape.checkpoint_every = 4;
  MemoryStore store;
  World::Options options;
  options.store = &store;
  options.make_stage =
      FakeStages([](int, int64_t step, const std::string&) -> absl::StatusOr<StageFault> {
        StageFault fault;
        fault.norm_is_infinite = step == 1;
        return fault;
      });
  World whole(MakePlan(shape), options);
  RunWell(&whole);
  const std::string weights = whole.Weights(6);
  shape.stages = 3;
  World again(MakePlan(shape, 2, 4), options);
  RunWell(&again);
  EXPECT_EQ(again.Weights(6), weights);
}

TEST(SessionEnd, TenSkipsInARowEndTheSession) {
  WorldShape shape;
  shape.steps = 100;
  World::Options options;
  options.make_stage =
      FakeStages([](int, int64_t step, const std::string&) -> absl::StatusOr<StageFault> {
        StageFault fault;
        fault.loss_is_nan = step >= 5;
        return fault;
      });
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("10 steps in a row"));
  }
  EXPECT_THAT(world.observer(0).records(), SizeIs(14));
}

TEST(SessionEnd, ASlowStoreDelaysCheckpointsAndNotTraining) {
  WorldShape shape;
  shape.steps = 8;
  shape.checkpoint_every = 2;
  shape.step_ms = 1200;  // a stage waits a quarter of it for its store, then votes busy
  MemoryStore store;
  store.CloseGate();
  World::Options options;
  options.store = &store;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 0 && step == 6 && operation == "forward") store.OpenGate();
        return StageFault{};
      });
  World world(MakePlan(shape), options);
  RunWell(&world);
  const std::vector<int64_t> steps = store.complete_steps();
  // Checkpoint 2 was under way until step 6; what was owed from then on is written at the first
  // commit with both stages free.
  EXPECT_EQ(steps.front(), 2);
  EXPECT_EQ(steps.back(), 8);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), 4), 0);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), 6), 0);
}

// The parts go from the stages to the store: all checkpoints are there, and are those of a host
// with room. The disk fills up in the middle.
TEST(SessionEnd, ADiskThatTakesNothingLosesNoCheckpoint) {
  for (const char* schedule : {"1f1b", "overlap"}) {
    WorldShape shape;
    shape.stages = 3;
    shape.schedule = schedule;
    shape.steps = 8;
    shape.checkpoint_every = 2;
    World roomy(MakePlan(shape));
    RunWell(&roomy);
    MemoryStore store;
    World::Options options;
    options.store = &store;
    options.make_stage = FakeStages(
        [&](int, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
          if (step == 3 && operation == "apply")
            store.set_keep_error(absl::ResourceExhaustedError("no room"));
          return StageFault{};
        });
    World world(MakePlan(shape), options);
    RunWell(&world);
    EXPECT_THAT(store.complete_steps(), ElementsAre(2, 4, 6, 8));
    for (int64_t step : {2, 4, 6, 8})
      EXPECT_EQ(world.Weights(step), roomy.Weights(step)) << schedule << ", step " << step;
  }
}

TEST(SessionEnd, APeriodicCheckpointMayFailTheLastOneMayNot) {
  WorldShape shape;
  shape.checkpoint_every = 2;
  for (const bool heals : {true, false}) {
    MemoryStore store;
    store.set_put_error(absl::UnavailableError("the coordinator is away"));
    World::Options options;
    options.store = &store;
    options.make_stage = FakeStages(
        [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
          if (heals && stage == 0 && step == 5 && operation == "forward")
            store.set_put_error(absl::OkStatus());
          return StageFault{};
        });
    World world(MakePlan(shape), options);
    int failed = 0;
    for (const absl::Status& status : world.Run()) {
      if (status.ok()) continue;
      ++failed;
      EXPECT_THAT(status.message(), HasSubstr("the coordinator is away"));
    }
    EXPECT_EQ(failed > 0, !heals);
    EXPECT_EQ(world.session(0).step(), 6);
  }
}

// An evaluation of 60,000 samples: whoever waits for it waits for long.
TEST(SessionEnd, AStopLeavesAValidationPassOnAllStages) {
  for (const int stages : {1, 2, 4}) {
    for (const int64_t asked : {1, 6}) {  // in the pass after so many steps; the last one too
      WorldShape shape;
      shape.stages = stages;
      shape.steps = 6;
      shape.eval_every = asked;
      shape.eval_samples = 60000;
      FakeCorpus corpus(23, 60000, shape.context, shape.vocabulary);
      World* running = nullptr;
      std::atomic<int> passes{0};
      World::Options options;
      options.corpus = &corpus;
      options.make_stage = FakeStages(
          [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
            if (step != asked || operation != "forward") return StageFault{};
            ++passes;
            if (stage == 0 && passes > 10) running->session(0).RequestStop();
            return StageFault{};
          });
      World world(MakePlan(shape), options);
      running = &world;
      RunWell(&world);
      const int64_t end = std::min<int64_t>(asked + 1, 6);
      EXPECT_LT(passes, 1000) << stages << " stages";
      for (int stage = 0; stage < stages; ++stage) EXPECT_EQ(world.session(stage).step(), end);
      EXPECT_THAT(world.store().complete_steps(), ElementsAre(end));
      for (const StepRecord& r : world.last().records())
        EXPECT_FALSE(r.has_validation_loss()) << "of a part of the samples";
    }
  }
}

// The checkpoint under way at the last step holds up neither the pass after it nor its own end.
TEST(SessionEnd, TheLastCheckpointWaitsForTheOneBeforeIt) {
  WorldShape shape;
  shape.steps = 4;
  shape.checkpoint_every = 2;
  shape.step_ms = 1200;
  MemoryStore store;
  store.CloseGate();
  World::Options options;
  options.store = &store;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 1 && step == 4 && operation == "forward") store.OpenGate();  // validation
        return StageFault{};
      });
  World world(MakePlan(shape), options);
  RunWell(&world);
  EXPECT_THAT(store.complete_steps(), ElementsAre(2, 4));
  EXPECT_TRUE(world.last().records().back().has_validation_loss());
}

TEST(SessionEnd, ASessionStaysUntilItsLastPartIsStored) {
  WorldShape shape;
  Plan plan = MakePlan(shape);
  plan.mutable_deadlines()->set_drain_ms(1);
  MemoryStore store;
  store.CloseGate();
  World::Options options;
  options.store = &store;
  World world(plan, options);
  world.Start();
  for (int stage = 0; stage < 2; ++stage) {
    while (world.observer(stage).records().size() < 6) std::this_thread::yield();
  }
  store.OpenGate();
  for (const absl::Status& status : world.Join()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(store.complete_steps(), ElementsAre(6));
}

// A part that was damaged on the disk of its host, while the coordinator's was full.
TEST(SessionEnd, ADamagedPartOfTheLastCheckpointIsWrittenAnew) {
  MemoryStore store;
  store.FailPuts(1, absl::DataLossError("not what was written"));
  World::Options options;
  options.store = &store;
  World world(MakePlan(WorldShape()), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(store.complete_steps(), ElementsAre(6));
}

// The order of samples depends on how many there are: a shorter copy of the text gives other ids.
TEST(SessionEnd, AnotherTextOnTheLastStageIsNoticed) {
  const Plan plan = MakePlan(WorldShape());
  MemoryLinkHub hub;
  MemoryStore store;
  const FakeCorpus corpora[2] = {{23, 9, 3, 11}, {22, 9, 3, 11}};
  RecordingObserver observers[2];
  std::unique_ptr<Session> sessions[2];
  for (int i = 0; i < 2; ++i) {
    SessionOptions options;
    options.plan = plan;
    options.rank = i;
    options.links = &hub;
    options.checkpoints = &store;
    options.observer = &observers[i];
    options.corpus = &corpora[i];
    options.make_stage = FakeStages();
    sessions[i] = MakeSession(options).value();
  }
  absl::Status results[2];
  std::thread lower([&] { results[0] = sessions[0]->Run(); });
  results[1] = sessions[1]->Run();
  lower.join();
  for (const absl::Status& status : results)
    EXPECT_THAT(status.message(), HasSubstr("is not the same file on"));
}

// Whose file changes after a few samples.
class ChangedCorpus : public FakeCorpus {
 public:
  using FakeCorpus::FakeCorpus;
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override {
    if (++reads_ > 20) return absl::FailedPreconditionError("text.txt was changed");
    return FakeCorpus::Read(id, tokens, targets);
  }

 private:
  mutable std::atomic<int> reads_{0};
};

TEST(SessionEnd, ATextThatChangesEndsTheSessionInWords) {
  for (int changed : {0, 1}) {
    const Plan plan = MakePlan(WorldShape());
    MemoryLinkHub hub;
    MemoryStore store;
    const FakeCorpus good(23, 9, 3, 11);
    const ChangedCorpus bad(23, 9, 3, 11);
    RecordingObserver observers[2];
    std::unique_ptr<Session> sessions[2];
    for (int i = 0; i < 2; ++i) {
      SessionOptions options;
      options.plan = plan;
      options.rank = i;
      options.links = &hub;
      options.checkpoints = &store;
      options.observer = &observers[i];
      options.corpus = i == changed ? &bad : &good;
      options.make_stage = FakeStages();
      sessions[i] = MakeSession(options).value();
    }
    absl::Status results[2];
    std::thread lower([&] { results[0] = sessions[0]->Run(); });
    results[1] = sessions[1]->Run();
    lower.join();
    for (const absl::Status& status : results) {
      EXPECT_THAT(status.message(), HasSubstr("text.txt was changed. Correct the cause"));
      EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("stage ", changed)));
    }
    EXPECT_GT(sessions[0]->step(), 0);
  }
}

TEST(SessionEnd, APeerThatNeverComesIsNamed) {
  WorldShape shape;
  shape.step_ms = 100;
  MemoryLinkHub hub;
  MemoryStore store;
  RecordingObserver observer;
  FakeCorpus corpus(23, 9, 3, 11);
  SessionOptions options;
  options.plan = MakePlan(shape);
  options.links = &hub;
  options.checkpoints = &store;
  options.observer = &observer;
  options.corpus = &corpus;
  options.make_stage = FakeStages();
  const absl::Status status = MakeSession(options).value()->Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("stage 1 (node-1, 10.0.0.2:7071)"));
}

TEST(SessionEnd, CancelBeforeRun) {
  World world(MakePlan(WorldShape()));
  world.session(0).Cancel(absl::CancelledError("never mind"));
  world.session(1).Cancel(absl::CancelledError("never mind"));
  for (const absl::Status& status : world.Run()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(status.message(), HasSubstr("never mind"));
  }
}

}  // namespace
}  // namespace isthmus::worker
