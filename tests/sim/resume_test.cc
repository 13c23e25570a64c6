// Any rank is cancelled at any point, also while codec states are being saved; the job goes on from
// its last checkpoint. Where all codecs go on, its losses are those of a run that was never
// interrupted; where some had no state to go on from, it starts them over at both ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

WorldShape ShapeOf(uint64_t seed) {
  const auto pick = [&](uint64_t stream, uint64_t n) { return RandomBelow(seed, stream, 0, n); };
  const char* forward[] = {"delta(quant(2))", "predict(quant(2), context=2)",
                           "delta(quant(2), cold=predict(quant(3)))"};
  const char* backward[] = {"ef(quant(2))", "lep(lowrank(1))", "none"};
  WorldShape shape;
  shape.stages = 2 + pick(1, 3);
  shape.schedule = pick(2, 2) == 0 ? "1f1b" : "gpipe";
  shape.steps = 14;
  shape.checkpoint_every = 2 + pick(3, 2);
  shape.check_buffers = true;
  shape.forward = forward[pick(4, 3)];
  shape.backward = backward[pick(5, 3)];
  shape.tied = pick(6, 2) == 0 ? "none" : "ef(quant(2, token))";
  return shape;
}

class ResumeTest : public ::testing::TestWithParam<int> {};

TEST_P(ResumeTest, GoesOnOrStartsOver) {
  const uint64_t seed = GetParam();
  const auto pick = [&](uint64_t stream, uint64_t n) { return RandomBelow(seed, stream, 0, n); };
  const WorldShape shape = ShapeOf(seed);
  const int victim = pick(7, shape.stages);
  const int hooked = pick(8, shape.stages);
  const int64_t step = 2 + pick(9, 11);
  const bool while_saving = pick(10, 3) == 0;
  const int64_t save = pick(11, 20);  // which of those
  const std::string name =
      absl::StrCat("seed ", seed, ": stage ", victim, " of ", shape.stages, " killed at ",
                   while_saving ? absl::StrCat("save ", save) : absl::StrCat("step ", step));

  World whole(MakePlan(shape));
  for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
  const std::vector<double> losses = whole.last().losses();

  MemoryStates states;
  World::Options options;
  options.codec_states = &states;
  World* running = nullptr;
  std::atomic<int64_t> saves{0};
  const auto kill = [&] {
    running->session(victim).Cancel(absl::AbortedError("killed by the test"));
  };
  if (while_saving) {
    states.set_on_commit([&](const CodecStateKey&) {
      if (saves++ == save) kill();
    });
  } else {
    options.make_stage =
        FakeStages([&](int stage, int64_t at, const std::string& op) -> absl::StatusOr<StageFault> {
          if (stage == hooked && at == step && op == "forward") kill();
          return StageFault{};
        });
  }
  MemoryStore store;
  options.store = &store;
  {
    World world(MakePlan(shape), options);
    running = &world;
    world.Run();  // some ranks may have ended well, if the kill came late
  }
  states.set_on_commit(nullptr);
  options.make_stage = nullptr;
  const std::vector<int64_t> saved = store.complete_steps();
  if (saved.empty() || saved.back() == shape.steps) return;
  World again(MakePlan(shape, 2, saved.back()), options);
  for (const absl::Status& status : again.Run()) ASSERT_TRUE(status.ok()) << name << ": " << status;
  bool all_go_on = true;
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const SessionEvent& event : again.observer(stage).events())
      all_go_on = all_go_on && !absl::StrContains(event.message(), "new");
  }
  RecordProperty("goes_on", all_go_on);
  const std::vector<double> rest(losses.begin() + saved.back(), losses.end());
  ASSERT_EQ(again.last().losses().size(), rest.size()) << name;
  if (all_go_on) {
    EXPECT_EQ(again.last().losses(), rest) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ResumeTest, ::testing::Range(0, 150));

}  // namespace
}  // namespace isthmus::worker
