#include "proto/job/checkpoint_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/job/job_defaults.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

TEST(CheckpointState, AJobSurvivesToTheLastBit) {
  CheckpointState state;
  state.step = 100;
  JobSpec& job = state.job.emplace();
  job.set_name("bible");
  job.set_seed(18446744073709551615u);  // beyond what a JSON number holds
  job.mutable_recipe()->set_learning_rate(0.1 + 0.2);
  job.mutable_recipe()->set_steps(int64_t{1} << 40);
  job.mutable_model()->set_context(64);
  job.mutable_compression()->add_boundaries()->set_forward("delta(quant(3))");
  FillDefaults(&job);
  state.position.emplace().set_samples(3200);
  const std::string text = CheckpointStateJson(state);
  EXPECT_THAT(text, HasSubstr("\"tokens\": 204800"));
  const CheckpointState back = ParseCheckpointState(text, 100).value();
  EXPECT_EQ(back.job->SerializeAsString(), job.SerializeAsString());
  EXPECT_EQ(back.position->samples(), 3200);
}

TEST(CheckpointState, OfAnOlderVersionHasLess) {
  const char* text =
      R"({"step": 5, "skipped_steps": 1, "seed": 1, "stage": 0, "stages": 2, "tokens": 105,
          "sample_order": {"seed": 1, "next_step": 5}, "generation": 9})";
  const CheckpointState state = ParseCheckpointState(text, 5).value();
  EXPECT_EQ(state.skipped_steps, 1);
  EXPECT_FALSE(state.job.has_value());
  EXPECT_FALSE(state.position.has_value());
  EXPECT_EQ(state.corpus_fingerprint, 0u);
  EXPECT_EQ(ParseCheckpointState("{\"step\": 5}", 5)->skipped_steps, 0);  // of another program
}

TEST(CheckpointState, OfALaterVersionIsRead) {
  const char* text =
      R"({"step": 5, "later": [1], "position": {"epoch": 1, "samples": "40", "lane": 3},
          "job": {"name": "x", "recipe": {"steps": "9", "muon": true}}})";
  const CheckpointState state = ParseCheckpointState(text, 5).value();
  EXPECT_EQ(state.position->samples(), 40);
  EXPECT_EQ(state.job->recipe().steps(), 9);
  EXPECT_EQ(state.job->recipe().beta1(), 0.9);  // a default of its own
}

TEST(CheckpointState, HostileTextIsRefused) {
  for (const char* text :
       {"", "[", "[]", "null", "{}", "{\"step\": \"5\"}", "{\"step\": 6}",
        "{\"step\": 5, \"skipped_steps\": -1}", "{\"step\": 5, \"skipped_steps\": 6}",
        "{\"step\": 5, \"position\": {\"offset\": 3, \"samples\": 2}}",
        "{\"step\": 5, \"position\": {\"epoch\": -1}}"}) {
    EXPECT_EQ(ParseCheckpointState(text, 5).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace isthmus
