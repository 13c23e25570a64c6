// Sessions that go on with the codec states of their checkpoint: losses, and every byte of every
// tensor on the wire, are those of a run that was never interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/rank/tap_links.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 14, kEvery = 4;  // 23 samples, 7 a step: some come back after 3 steps

struct Ran {
  std::vector<double> losses;
  TappedFrames payloads;
  std::vector<std::string> states;  // the words of each stage
  int64_t key_frames = 0;
};

WorldShape Shape(const std::string& forward, const std::string& backward) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = kSteps;
  shape.checkpoint_every = kEvery;
  shape.constant_rate = true;  // also in a run of fewer steps
  shape.check_buffers = true;
  shape.eval_samples = 0;  // no validation pass at the end of a run
  shape.forward = forward;
  shape.backward = backward;
  return shape;
}

Ran RunWorld(const WorldShape& shape, MemoryStore* store, MemoryStates* states,
             uint64_t generation = 1, int64_t start_step = 0) {
  TapOpener links;
  World::Options options;
  options.links = &links;
  options.store = store;
  options.codec_states = states;
  World world(MakePlan(shape, generation, start_step), options);
  Ran ran;
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  ran.losses = world.last().losses();
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const StepRecord& record : world.observer(stage).records()) {
      ran.key_frames += record.key_frames();
    }
    for (const SessionEvent& event : world.observer(stage).events()) {
      if (event.state() == SessionEvent::PREPARED) ran.states.push_back(event.message());
    }
  }
  ran.payloads = links.Frames();
  return ran;
}

// Runs `shape` to `step`, then on in a second session.
struct Interrupted {
  MemoryStore store;
  MemoryStates states;
  Ran before, after;

  void First(WorldShape shape, int64_t step) {
    shape.steps = static_cast<int>(step);
    before = RunWorld(shape, &store, &states);
  }
  void Second(const WorldShape& shape, int64_t step) {
    after = RunWorld(shape, &store, &states, 2, step);
  }
};

void ExpectSame(const Ran& whole, const Interrupted& run) {
  std::vector<double> losses = run.before.losses;
  losses.insert(losses.end(), run.after.losses.begin(), run.after.losses.end());
  EXPECT_EQ(losses, whole.losses);
  TappedFrames payloads = run.before.payloads;
  payloads.insert(run.after.payloads.begin(), run.after.payloads.end());
  EXPECT_EQ(payloads, whole.payloads);
  EXPECT_EQ(run.before.key_frames + run.after.key_frames, whole.key_frames);
  for (const std::string& words : run.after.states) {
    EXPECT_THAT(words, HasSubstr("goes on"));
    EXPECT_THAT(words, Not(HasSubstr("new")));
  }
}

struct Codecs {
  const char* forward;
  const char* backward;
  const char* tied;
};

TEST(SessionState, AResumeEqualsARunThatWasNotInterrupted) {
  const Codecs all[] = {
      {"delta(quant(2))", "ef(quant(2))", "none"},
      {"predict(quant(2, token), context=2)", "predict(quant(3, token), next)", "none"},
      {"delta(quant(3), cold=predict(quant(4)))", "lep(lowrank(1))", "quant(4, token, stochastic)"},
      {"lowrank(1)", "quant(3, stochastic)", "ef(quant(2, token))"},
      {"delta(quant(2)) | zstd", "randomk(0.5, scaled)", "none | zstd"},
  };
  for (const Codecs& codecs : all) {
    SCOPED_TRACE(absl::StrCat(codecs.forward, ", ", codecs.backward, ", ", codecs.tied));
    for (const char* schedule : {"1f1b", "gpipe", "overlap"}) {
      WorldShape shape = Shape(codecs.forward, codecs.backward);
      shape.tied = codecs.tied;
      shape.schedule = schedule;
      const Ran whole = RunWorld(shape, nullptr, nullptr);
      Interrupted run;
      run.First(shape, 2 * kEvery);
      run.Second(shape, 2 * kEvery);
      ExpectSame(whole, run);
    }
  }
}

// What a resume costs without: the test above can fail.
TEST(SessionState, WithoutStatesAResumeStartsOver) {
  const WorldShape shape = Shape("delta(quant(2))", "ef(quant(2))");
  const Ran whole = RunWorld(shape, nullptr, nullptr);
  Interrupted run;
  run.First(shape, 2 * kEvery);
  run.states.Lose("");
  run.Second(shape, 2 * kEvery);
  EXPECT_GT(run.before.key_frames + run.after.key_frames, whole.key_frames);
  EXPECT_NE(run.after.losses.back(), whole.losses.back());
  for (const std::string& words : run.after.states)
    EXPECT_THAT(words, HasSubstr("new, neither end has its state"));
}

TEST(SessionState, AThirdSessionGoesOnFromTheSecond) {
  const WorldShape shape = Shape("delta(quant(2))", "lep(quant(2))");
  const Ran whole = RunWorld(shape, nullptr, nullptr);
  Interrupted run;
  run.First(shape, kEvery);
  WorldShape second = shape;
  second.steps = 2 * kEvery + 1;
  const Ran middle = RunWorld(second, &run.store, &run.states, 2, kEvery);
  run.before.losses.insert(run.before.losses.end(), middle.losses.begin(), middle.losses.end());
  run.after = RunWorld(shape, &run.store, &run.states, 3, 2 * kEvery + 1);
  run.before.losses.insert(run.before.losses.end(), run.after.losses.begin(),
                           run.after.losses.end());
  EXPECT_EQ(run.before.losses, whole.losses);
}

TEST(SessionState, OneEndThatLostItsStateMakesBothNew) {
  const WorldShape shape = Shape("delta(quant(2))", "ef(quant(2))");
  for (const char* lost : {"b0-lower-up", "b0-upper-up"}) {
    Interrupted run;
    run.First(shape, 2 * kEvery);
    run.states.Lose(lost);
    run.Second(shape, 2 * kEvery);  // check_buffers: the two ends agree
    const bool lower = absl::StrContains(lost, "lower");
    EXPECT_THAT(run.after.states[0],
                HasSubstr(lower ? "b0: outgoing codec new, not here; incoming codec goes on"
                                : "b0: outgoing codec new, the peer has no state"));
    EXPECT_THAT(run.after.states[1], HasSubstr(lower ? "incoming codec new, the peer has no state"
                                                     : "incoming codec new, not here"));
    EXPECT_THAT(run.after.states[2], Not(HasSubstr("new")));  // b1 goes on
  }
}

TEST(SessionState, ADamagedStateIsNoState) {
  const WorldShape shape = Shape("delta(quant(2))", "ef(quant(2))");
  Interrupted run;
  run.First(shape, 2 * kEvery);
  run.states.Damage("b1-upper-up");
  run.Second(shape, 2 * kEvery);
  EXPECT_THAT(run.after.states[1],
              HasSubstr("b1: outgoing codec new, the peer has no state; incoming codec goes on"));
  EXPECT_THAT(run.after.states[2], HasSubstr("b1: outgoing codec goes on; incoming codec new"));
}

TEST(SessionState, AnotherCutOrCodecStartsOver) {
  const WorldShape shape = Shape("delta(quant(2))", "ef(quant(2))");
  Interrupted run;
  run.First(shape, 2 * kEvery);
  WorldShape other = shape;
  other.backward = "ef(quant(3))";
  const Ran codec = RunWorld(other, &run.store, &run.states, 2, 2 * kEvery);
  EXPECT_THAT(codec.states[1],
              HasSubstr("b1: outgoing codec goes on; incoming codec new, neither"));

  Interrupted moved;
  moved.First(shape, 2 * kEvery);
  Plan plan = MakePlan(shape, 2, 2 * kEvery);
  plan.mutable_ranks(0)->set_end_layer(plan.ranks(0).end_layer() + 1);
  plan.mutable_ranks(1)->set_first_layer(plan.ranks(0).end_layer());
  World::Options options;
  options.store = &moved.store;
  options.codec_states = &moved.states;
  World world(plan, options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(world.observer(0).events().front().message(),
              HasSubstr("b0: outgoing codec new, neither end"));
  EXPECT_THAT(world.last().events().front().message(), HasSubstr("b1: outgoing codec goes on"));
}

TEST(SessionState, AFullDiskCostsTheStateAlone) {
  const WorldShape shape = Shape("delta(quant(2))", "ef(quant(2))");
  Interrupted run;
  run.states.set_disk_bytes(40);
  run.First(shape, 2 * kEvery);
  EXPECT_THAT(run.states.names(), ElementsAre());
  run.Second(shape, 2 * kEvery);
  EXPECT_EQ(run.after.losses.size(), static_cast<size_t>(kSteps - 2 * kEvery));
}

TEST(SessionState, TheLastTwoCheckpointsAreKept) {
  WorldShape shape = Shape("delta(quant(2))", "none");
  shape.stages = 2;
  Interrupted run;
  run.First(shape, 3 * kEvery);
  EXPECT_THAT(run.states.names(),
              ElementsAre("b0-lower-up@8", "b0-lower-up@12", "b0-upper-up@8", "b0-upper-up@12"));
  // The coordinator has only the one before: states of what will be done anew go.
  run.Second(shape, 2 * kEvery);
  EXPECT_THAT(run.after.states[0], HasSubstr("b0: outgoing codec goes on"));
  EXPECT_THAT(run.after.states[1], HasSubstr("b0: incoming codec goes on"));
}

}  // namespace
}  // namespace isthmus::worker
