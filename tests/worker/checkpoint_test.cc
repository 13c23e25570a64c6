#include "worker/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CheckpointState, TellsWhereTheDataStands) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape(), 9), 1).value();
  const std::string json = CheckpointStateJson(*plan, 5, 2);
  for (const char* part :
       {"\"step\": 5", "\"skipped_steps\": 2", "\"seed\": 1", "\"stage\": 1", "\"tokens\": 105",
        "\"next_step\": 5", "\"generation\": 9", "\"kind\": \"cosine\""}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
  EXPECT_EQ(SkippedFromStateJson(json, 5).value(), 2);
  EXPECT_THAT(SkippedFromStateJson(json, 6).status().message(), HasSubstr("is of step 5"));
}

TEST(CheckpointState, HostileTextIsRefused) {
  for (const char* text :
       {"", "[", "[]", "null", "{}", "{\"step\": \"5\"}", "{\"step\": 5, \"skipped_steps\": -1}",
        "{\"step\": 5, \"skipped_steps\": 6}"}) {
    EXPECT_EQ(SkippedFromStateJson(text, 5).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(SkippedFromStateJson("{\"step\": 5}", 5).value(), 0);  // as other programs may write it
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
  writer.Save({4, "wte 1\n", "wte.exp_avg 2\n", CheckpointStateJson(*plan, 4, 0)});
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
    writer.Save(ExportCheckpoint(*plan, stage.get(), 3, 1).value());
    EXPECT_TRUE(writer.WaitIdle(absl::Seconds(60)));
  }
  shape.stages = 1;
  shape.seed = 99;  // its own weights would differ
  const auto plan = SessionPlan::Make(MakePlan(shape, 2, 3), 0).value();
  const auto stage = FakeStages()(plan->plan(), 0).value();
  EXPECT_EQ(LoadCheckpoint(*plan, &store, stage.get()).value(), 1);
  shape.seed = 1;
  const auto same = FakeStages()(MakePlan(shape), 0).value();
  EXPECT_EQ(stage->ExportWeights().value(), same->ExportWeights().value());
}

}  // namespace
}  // namespace isthmus::worker
