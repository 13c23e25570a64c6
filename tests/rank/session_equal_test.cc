// Replicas that differ are refused in whole sessions (worker/sync/equal_weights.h). F57: replicas
// that began with other seeds trained on in silence; after each commit all hold the same weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/failure_cause.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

WorldShape Shape(std::vector<int> replicas, int stages, int local_steps) {
  WorldShape shape;
  shape.replicas = std::move(replicas);
  shape.stages = stages;
  shape.local_steps = local_steps;
  return shape;
}

TEST(EqualWeights, AReplicaOfAnotherSeedIsRefusedBeforeAnythingApplies) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {3, 3, 1}}) {
    for (const int stages : {1, 2}) {
      for (const int local_steps : {1, 3}) {
        const std::string what =
            absl::StrCat(replicas.size(), " x ", stages, ", local steps ", local_steps);
        const Plan plan = MakePlan(Shape(replicas, stages, local_steps));
        World::Options options;
        options.make_stage = [](const Plan& p, int rank) {
          Plan own = p;
          if (p.ranks(rank).replica() == 1) own.mutable_job()->set_seed(4711);
          return FakeStages()(own, rank);
        };
        World world(plan, options);
        for (const absl::Status& status : world.Run()) {
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << what << status;
          EXPECT_THAT(status.message(),
                      AllOf(HasSubstr(" of replica 1 (node-"), HasSubstr(" of replica "),
                            HasSubstr("before step 0 are not those of"),
                            HasSubstr("Resume the job from its last checkpoint"),
                            Not(HasSubstr("Correct the cause"))))
              << what;
          const auto cause = CauseOf(status);
          ASSERT_TRUE(cause.has_value()) << what;
          EXPECT_EQ(cause->kind(), FailureCause::SESSION_FAILED) << what;
        }
        // Steps that a replica makes by itself before the first agreement are all that there are.
        for (int r = 0; r < plan.ranks_size(); ++r)
          EXPECT_LT(world.session(r).step(), local_steps) << what;
        EXPECT_TRUE(world.store().complete_steps().empty()) << what;
      }
    }
  }
}

// The last replica's weight changes in the middle of `step`.
std::vector<absl::Status> RunWithAFlip(const WorldShape& shape, int64_t step) {
  const Plan plan = MakePlan(shape);
  std::vector<Stage*> stages(plan.ranks_size());
  const int odd = plan.ranks_size() - 1;
  const StageFactory fakes =
      FakeStages([&stages, odd, step](int rank, int64_t at,
                                      const std::string& operation) -> absl::StatusOr<StageFault> {
        const float other = 1000;
        if (rank != odd || at != step || operation != "norm") return StageFault{};
        return stages[rank]->WriteTensor(0, 1, {&other, 1}).ok()
                   ? absl::StatusOr<StageFault>(StageFault{})
                   : absl::InternalError("the test can't write");
      });
  World::Options options;
  options.make_stage = [&](const Plan& p, int rank) {
    auto stage = fakes(p, rank);
    if (stage.ok()) stages[rank] = stage->get();
    return stage;
  };
  options.make_lanes = [](int) -> LaneFactory {  // as a daemon's on a CPU
    return []() -> absl::StatusOr<std::unique_ptr<DeviceLane>> { return nullptr; };
  };
  World world(plan, options);
  return world.Run();
}

struct Case {
  std::string name;
  WorldShape shape;
  int64_t flip = 0;
  std::string found;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&cases](const char* name, int64_t flip, const char* found) -> WorldShape& {
    cases.push_back({name, Shape({3, 3, 1}, 2, 1), flip, found});
    cases.back().shape.check_buffers = true;
    return cases.back().shape;
  };
  add("each step", 3, "before step 4");
  WorldShape& seldom = add("every hundredth step", 140, "before step 200");
  seldom.check_buffers = false;
  seldom.steps = 230;
  add("buckets", 2, "before step 3").buckets = 2;
  cases.back().shape.hidden = 256;
  add("a codec", 2, "before step 3").gradients = "ef(quant(4, token, symmetric))";
  WorldShape& rounds = add("local steps", 4, "before step 6");
  rounds.local_steps = 3;
  rounds.steps = 12;
  WorldShape& overlap = add("overlapped steps", 5, "before step 8");
  overlap.schedule = "overlap";
  overlap.checkpoint_every = 4;
  overlap.steps = 12;
  WorldShape& streams = add("fragments", 8, "before step 12");
  streams.local_steps = streams.checkpoint_every = 6;
  streams.fragments = 2;
  streams.fragment_delay = 1;
  streams.steps = 24;
  return cases;
}

TEST(EqualWeights, OneWeightThatChangesIsFound) {
  for (const Case& c : Cases()) {
    for (const absl::Status& status : RunWithAFlip(c.shape, c.flip)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << c.name << status;
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr(" of stage 1 of replica 2 (node-5"), HasSubstr(c.found),
                        HasSubstr("They were equal before"), Not(HasSubstr("Correct the cause"))))
          << c.name;
    }
  }
}

TEST(EqualWeights, HonestReplicasPass) {
  for (const Case& c : Cases()) {
    for (const absl::Status& status : RunWithAFlip(c.shape, -1))
      EXPECT_TRUE(status.ok()) << c.name << status;
  }
}

// One replica: the two ends of the tied embedding.
TEST(EqualWeights, TheTwoEndsOfAnEmbeddingThatDifferAreRefused) {
  WorldShape shape;
  World::Options options;
  options.make_stage = [](const Plan& p, int rank) {
    Plan own = p;
    if (rank == 1) own.mutable_job()->set_seed(4711);
    return FakeStages()(own, rank);
  };
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run())
    EXPECT_THAT(status.message(), HasSubstr("the token embedding of stage 1 (node-1"));
}

}  // namespace
}  // namespace isthmus::worker
