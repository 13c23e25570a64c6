// Any rank is cancelled at any point of any step: all ranks end, and a checkpoint is whole or not
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

class KillTest : public ::testing::TestWithParam<int> {};

TEST_P(KillTest, EndsAllRanks) {
  const uint64_t seed = GetParam();
  const auto pick = [&](uint64_t stream, uint64_t n) { return RandomBelow(seed, stream, 0, n); };
  WorldShape shape;
  shape.stages = 2 + pick(1, 3);
  shape.schedule = pick(2, 2) == 0 ? "1f1b" : "gpipe";
  shape.steps = 1000000;  // only the kill ends it
  shape.eval_every = 3;
  shape.checkpoint_every = 2;
  shape.queue_limit = 1 + pick(3, 2);
  const int victim = pick(4, shape.stages);
  const int hooked = pick(5, shape.stages);  // whose thread is at the point in time
  const int64_t step = pick(6, 5);
  const char* operations[] = {"forward", "backward", "norm", "apply"};
  const std::string operation = operations[pick(7, 4)];
  const std::string name = absl::StrCat("stage ", victim, " of ", shape.stages, " killed at ",
                                        operation, " of stage ", hooked, ", step ", step);

  World* running = nullptr;
  World::Options options;
  options.make_stage =
      FakeStages([&](int stage, int64_t at, const std::string& op) -> absl::StatusOr<StageFault> {
        if (stage == hooked && at == step && op == operation)
          running->session(victim).Cancel(absl::AbortedError("killed by the test"));
        return StageFault{};
      });
  World world(MakePlan(shape), options);
  running = &world;
  for (const absl::Status& status : world.Run()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << name << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("stage ", victim, " (node-", victim)))
        << name;
    EXPECT_THAT(status.message(), HasSubstr("killed by the test")) << name;
  }
  // Steps differ by at most the one whose decision was on its way.
  for (int stage = 1; stage < shape.stages; ++stage) {
    EXPECT_LE(world.session(stage).step(), world.session(0).step()) << name;
    EXPECT_GE(world.session(stage).step() + 1, world.session(0).step()) << name;
  }
  // What is complete can be resumed from, on another cut.
  const std::vector<int64_t> saved = world.store().complete_steps();
  if (saved.empty()) return;
  shape.steps = saved.back() + 2;
  shape.stages = 1;
  options.store = &world.store();
  options.make_stage = nullptr;
  World again(MakePlan(shape, 2, saved.back()), options);
  for (const absl::Status& status : again.Run()) EXPECT_TRUE(status.ok()) << name << ": " << status;
}

INSTANTIATE_TEST_SUITE_P(Seeds, KillTest, ::testing::Range(0, 100));

}  // namespace
}  // namespace isthmus::worker
