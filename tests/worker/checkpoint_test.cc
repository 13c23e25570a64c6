#include "worker/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CorpusPosition SomeCorpus() {
  CorpusPosition corpus;
  corpus.position.emplace().set_epoch(2);
  corpus.position->set_offset(7);
  corpus.position->set_samples(35);
  corpus.fingerprint = 0xabc;
  corpus.contents = 0xdef;
  return corpus;
}

TEST(CheckpointState, TellsWhereTheRunStands) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape(), 9), 1).value();
  const CheckpointState state =
      ParseCheckpointState(CheckpointStateJson(StateOf(*plan, 5, 2, SomeCorpus())), 5).value();
  EXPECT_EQ(state.skipped_steps, 2);
  EXPECT_EQ(state.generation, 9u);
  EXPECT_EQ(state.stage, 1);
  EXPECT_EQ(state.stages, 2);
  EXPECT_EQ(state.job->SerializeAsString(), plan->job().SerializeAsString());
  EXPECT_EQ(state.position->SerializeAsString(), SomeCorpus().position->SerializeAsString());
  EXPECT_EQ(state.corpus_fingerprint, 0xabcu);
  EXPECT_EQ(state.corpus_contents, 0xdefu);
}

// A plan in the checkpoint's pass reads the checkpoint's text; one that begins a new pass, or a
// coordinator that knows no positions, may read another one.
TEST(CheckSameText, AnotherTextInTheMiddleOfAPassIsRefused) {
  Plan plan = MakePlan(WorldShape(), 9, 5);
  const auto check = [&](uint64_t fingerprint) {
    const auto session = SessionPlan::Make(plan, 0).value();
    return CheckSameText(*session, StateOf(*session, 5, 0, SomeCorpus()), fingerprint);
  };
  EXPECT_TRUE(check(1).ok());
  *plan.mutable_data() = *SomeCorpus().position;
  EXPECT_TRUE(check(0xabc).ok());
  const absl::Status other = check(1);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("(fingerprint 0000000000000001) is not the one"));
  EXPECT_THAT(other.message(), HasSubstr("--accept-changes"));
  plan.mutable_data()->set_epoch(3);
  plan.mutable_data()->set_offset(0);
  EXPECT_TRUE(check(1).ok());
}

TEST(CheckpointWriter, PutsAllPartsThenTells) {
  WorldShape shape;
  shape.stages = 1;
  const auto plan = SessionPlan::Make(MakePlan(shape), 0).value();
  MemoryStore store;
  RecordingObserver observer;
  CheckpointWriter writer(*plan, &store, &observer);
  EXPECT_TRUE(writer.WaitIdle(absl::ZeroDuration()));
  store.CloseGate();
  writer.Save({4, "wte 1\n", "wte.exp_avg 2\n", CheckpointStateJson(StateOf(*plan, 4, 0, {}))});
  EXPECT_FALSE(writer.WaitIdle(absl::Milliseconds(1)));
  store.OpenGate();
  EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  EXPECT_TRUE(writer.last_status().ok());
  EXPECT_THAT(store.complete_steps(), ElementsAre(4));
  ASSERT_EQ(observer.events().size(), 1u);
  EXPECT_EQ(observer.events()[0].state(), SessionEvent::CHECKPOINTED);
  EXPECT_EQ(observer.events()[0].step(), 4);

  store.set_put_error(absl::ResourceExhaustedError("disk full"));
  writer.Save({6, "", "", ""});
  EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  EXPECT_THAT(writer.last_status().message(),
              HasSubstr("weights.safetensors of checkpoint 6: disk full"));
  EXPECT_EQ(observer.events().size(), 1u);
}

class HeldCheckpoint : public ::testing::Test {
 protected:
  HeldCheckpoint() {
    WorldShape shape;
    shape.stages = 1;
    plan_ = SessionPlan::Make(MakePlan(shape), 0).value();
  }
  CheckpointWriterOptions Options(absl::Duration hold, absl::Duration again) {
    CheckpointWriterOptions options;
    options.hold = hold;
    options.again = again;
    options.progress = &progress_;
    return options;
  }
  CheckpointParts Parts(bool last) {
    CheckpointParts parts{6, "wte 1\n", "wte.exp_avg 2\n",
                          CheckpointStateJson(StateOf(*plan_, 6, 0, {}))};
    parts.tied = "wte 1\n";
    parts.last = last;
    return parts;
  }

  std::unique_ptr<const SessionPlan> plan_;
  MemoryStore store_;
  RecordingObserver observer_;
  std::atomic<int64_t> progress_{0};
};

TEST_F(HeldCheckpoint, TheLastOneIsTriedAgainWhileTheDiskIsFull) {
  CheckpointWriter writer(*plan_, &store_, &observer_,
                          Options(absl::Hours(1), absl::ZeroDuration()));
  store_.FailPuts(7, absl::ResourceExhaustedError("disk full"));
  writer.Save(Parts(true));
  EXPECT_TRUE(writer.WaitIdle(absl::InfiniteDuration()));
  EXPECT_TRUE(writer.last_status().ok()) << writer.last_status();
  EXPECT_THAT(store_.complete_steps(), ElementsAre(6));
  EXPECT_EQ(progress_, 7 + 3) << "who holds is alive";
  EXPECT_EQ(store_.kept().size(), 4u) << "the three files, and what is another stage's";
}

TEST_F(HeldCheckpoint, OthersAndRefusalsAreNot) {
  CheckpointWriter writer(*plan_, &store_, &observer_,
                          Options(absl::Hours(1), absl::ZeroDuration()));
  store_.FailPuts(1, absl::ResourceExhaustedError("disk full"));
  writer.Save(Parts(false));
  EXPECT_TRUE(writer.WaitIdle(absl::InfiniteDuration()));
  EXPECT_THAT(writer.last_status().message(), HasSubstr("disk full"));
  store_.FailPuts(1, absl::FailedPreconditionError("generation 9 is out of date"));
  writer.Save(Parts(true));
  EXPECT_TRUE(writer.WaitIdle(absl::InfiniteDuration()));
  EXPECT_THAT(writer.last_status().message(), HasSubstr("out of date"));
  EXPECT_EQ(progress_, 2);
}

TEST_F(HeldCheckpoint, AHoldEnds) {
  store_.set_put_error(absl::UnavailableError("away"));
  {
    CheckpointWriter writer(*plan_, &store_, &observer_,
                            Options(absl::ZeroDuration(), absl::ZeroDuration()));
    writer.Save(Parts(true));
    EXPECT_TRUE(writer.WaitIdle(absl::InfiniteDuration()));
    EXPECT_THAT(writer.last_status().message(), HasSubstr("away"));
  }
  CheckpointWriter writer(*plan_, &store_, &observer_, Options(absl::Hours(9), absl::Hours(9)));
  writer.Save(Parts(true));
  EXPECT_FALSE(writer.WaitIdle(absl::ZeroDuration()));
  writer.Abort();
  EXPECT_TRUE(writer.WaitIdle(absl::InfiniteDuration()));
  EXPECT_FALSE(writer.last_status().ok());
}

TEST(LoadCheckpoint, TakesWhatTheStageNames) {
  WorldShape shape;
  const auto saver = SessionPlan::Make(MakePlan(shape), 0).value();
  MemoryStore store;
  RecordingObserver observer;
  std::string weights[2], optimizer[2];
  for (int i = 0; i < 2; ++i) {
    const auto plan = SessionPlan::Make(MakePlan(shape), i).value();
    const auto stage = FakeStages()(plan->plan(), i).value();
    CheckpointWriter writer(*plan, &store, &observer);
    writer.Save(ExportCheckpoint(*plan, stage.get(), 3, 1, {}).value());
    EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  }
  shape.stages = 1;
  shape.seed = 99;  // its own weights would differ
  const auto plan = SessionPlan::Make(MakePlan(shape, 2, 3), 0).value();
  const auto stage = FakeStages()(plan->plan(), 0).value();
  EXPECT_EQ(LoadCheckpoint(*plan, &store, stage.get())->skipped_steps, 1);
  shape.seed = 1;
  const auto same = FakeStages()(MakePlan(shape), 0).value();
  EXPECT_EQ(stage->ExportWeights().value(), same->ExportWeights().value());
}

}  // namespace
}  // namespace isthmus::worker
