#include "worker/checkpoint/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tests/worker/world.h"
#include "worker/checkpoint/checkpoint.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of the last of two stages, which holds a copy of the first one's embedding; all stages' files are
// named as if it were the only one.
std::unique_ptr<Stage>& TheStage() {
  static std::unique_ptr<Stage> stage = FakeStages()(MakePlan(WorldShape()), 1).value();
  return stage;
}

CheckpointParts PartsAt(const SessionPlan& plan, int64_t step, MemoryStore* store) {
  return KeepCheckpoint(plan, store, TheStage().get(), StateOf(plan, step, 0, {}), false).value();
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
  writer.Save(PartsAt(*plan, 4, &store));
  EXPECT_FALSE(writer.WaitIdle(absl::Milliseconds(1)));
  store.OpenGate();
  EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  EXPECT_TRUE(writer.last_status().ok());
  EXPECT_THAT(store.complete_steps(), ElementsAre(4));
  ASSERT_EQ(observer.events().size(), 1u);
  EXPECT_EQ(observer.events()[0].state(), SessionEvent::CHECKPOINTED);
  EXPECT_EQ(observer.events()[0].step(), 4);

  store.set_put_error(absl::ResourceExhaustedError("disk full"));
  writer.Save(PartsAt(*plan, 6, &store));
  EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  EXPECT_THAT(std::string(writer.last_status().message()),
              HasSubstr("putting weights.safetensors of checkpoint 6, 336 bytes: disk full"));
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
    CheckpointParts parts = PartsAt(*plan_, 6, &store_);
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

// A disk that takes nothing. The stage's own parts go, and nothing is held in memory.
class DirectCheckpoint : public HeldCheckpoint {
 protected:
  CheckpointParts OfStage(bool last) {
    store_.set_keep_error(absl::ResourceExhaustedError("full"));
    CheckpointParts parts = PartsAt(*plan_, 6, &store_);
    parts.last = last;
    EXPECT_FALSE(parts.on_disk.ok());
    return parts;
  }
};

TEST_F(DirectCheckpoint, IsStoredWhenTheCallReturns) {
  CheckpointWriter writer(*plan_, &store_, &observer_,
                          Options(absl::Hours(1), absl::ZeroDuration()));
  writer.SaveHere(OfStage(false), absl::Hours(1));
  EXPECT_TRUE(writer.last_status().ok()) << writer.last_status();
  EXPECT_TRUE(writer.WaitIdle(absl::ZeroDuration()));
  EXPECT_THAT(store_.complete_steps(), ElementsAre(6));
  EXPECT_EQ(observer_.events().size(), 1u);
  EXPECT_TRUE(store_.kept().empty());
}

TEST_F(DirectCheckpoint, TheLastOneIsHeldByTheStage) {
  CheckpointWriter writer(*plan_, &store_, &observer_,
                          Options(absl::Hours(1), absl::ZeroDuration()));
  store_.FailPuts(7, absl::UnavailableError("away"));
  writer.SaveHere(OfStage(true), absl::ZeroDuration());
  EXPECT_TRUE(writer.last_status().ok())
      << "the last one has all the time: " << writer.last_status();
  EXPECT_THAT(store_.complete_steps(), ElementsAre(6));
}

TEST_F(DirectCheckpoint, OthersAreGivenUpInWordsBeforeTheOtherStagesDo) {
  CheckpointWriter writer(*plan_, &store_, &observer_,
                          Options(absl::Hours(1), absl::ZeroDuration()));
  writer.SaveHere(OfStage(false), absl::ZeroDuration());
  EXPECT_THAT(writer.last_status().message(), HasSubstr("the other stages wait"));
  EXPECT_TRUE(observer_.events().empty());
}

}  // namespace
}  // namespace isthmus::worker
