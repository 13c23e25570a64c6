// Replicas as threads: D pipelines of S stages train as one process does that makes the passes of
// all of them, bit for bit, with a stage of exact arithmetic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "tests/worker/link/memory_states.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;
using ::testing::SizeIs;

// One stage that makes every replica's passes itself: no sessions, links, groups or votes.
Outcome RunAlone(const WorldShape& shape) {
  WorldShape one = shape;
  one.stages = 1;
  one.replicas.clear();
  const Plan plan = MakePlan(one);
  const RecipeSpec& recipe = plan.job().recipe();
  const FakeCorpus corpus(23, 9, shape.context, shape.vocabulary);
  auto stage = FakeStages()(plan, 0).value();
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  const double tokens = static_cast<double>(shape.global_batch) * shape.context;
  Outcome outcome;
  for (int64_t step = 0; step < shape.steps; ++step) {
    double loss = 0;
    for (SampleOrder& order : orders) {
      const std::vector<uint32_t> ids = order.Step(step);
      loss += RunPasses(stage.get(), corpus, ids, shape, 1 / tokens);
    }
    outcome.losses.push_back(loss / tokens);
    const double squares = stage->Norm().sum_squares;
    outcome.norms.push_back(std::sqrt(squares));
    ApplyStep(stage.get(), recipe, step);
  }
  outcome.weights = WeightsOf(*stage);
  return outcome;
}

TEST(Replicas, AnyNumberAndAnyCutEqualsOneProcess) {
  const std::vector<std::vector<int>> replicas = {
      {4, 3}, {1, 5, 1}, {2, 1, 1, 2, 1}, {1, 1, 1, 1, 1, 1, 1}};
  for (const std::vector<int>& samples : replicas) {
    WorldShape shape;
    shape.replicas = samples;
    const Outcome alone = RunAlone(shape);
    ASSERT_THAT(alone.losses, SizeIs(shape.steps));
    for (int stages : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << samples.size() << " x " << stages);
      shape.stages = stages;
      shape.eval_every = stages == 2 ? 2 : 0;
      const Outcome world = RunToTheEnd(shape);
      EXPECT_THAT(world.losses, Pointwise(DoubleNear(1e-12), alone.losses));
      EXPECT_EQ(world.norms, alone.norms);
      EXPECT_EQ(world.weights, alone.weights);
    }
  }
}

// Buckets are offered while the last backward pass goes on. Without loss the bits are those without
// them; a codec with loss meets other owners of rows, who add their own contributions as they are.
TEST(Replicas, BucketsChangeNoBit) {
  for (const char* codec : {"none", "none | zstd"}) {
    for (int stages : {1, 2}) {
      WorldShape shape;
      shape.replicas = {3, 3, 1};
      shape.stages = stages;
      shape.hidden = 256;  // two layers a row
      shape.gradients = codec;
      shape.steps = 4;
      const Outcome whole = RunToTheEnd(shape);
      for (int buckets : {2, 4}) {
        SCOPED_TRACE(testing::Message() << codec << ", " << stages << " stages, " << buckets);
        shape.buckets = buckets;
        const Plan plan = MakePlan(shape);
        EXPECT_GT(GradientParts(plan, 0), 1);
        const Outcome world = RunToTheEnd(shape);
        EXPECT_EQ(world.losses, whole.losses);
        EXPECT_EQ(world.norms, whole.norms);
        EXPECT_EQ(world.weights, whole.weights);
      }
    }
  }
}

// A sample belongs to one replica for good: no two ever read the same, in any epoch.
TEST(Replicas, ASampleBelongsToOneReplica) {
  for (int64_t samples : {7, 23, 100, 1001}) {
    std::vector<std::set<uint32_t>> seen(3);
    const int64_t bounds[] = {0, 2, 6, 7};
    for (int d = 0; d < 3; ++d) {
      SampleOrder order(5, samples, 7, 0, DataPosition(), SampleOrder::kMostShuffled,
                        {bounds[d], bounds[d + 1]});
      for (int64_t step = 0; step < 4 * (samples / 7); ++step) {
        const std::vector<uint32_t> ids = order.Step(step);
        EXPECT_THAT(ids, SizeIs(bounds[d + 1] - bounds[d]));
        EXPECT_THAT(std::set<uint32_t>(ids.begin(), ids.end()), SizeIs(ids.size()));
        seen[d].insert(ids.begin(), ids.end());
      }
    }
    size_t all = 0;
    std::set<uint32_t> together;
    for (const auto& ids : seen) {
      all += ids.size();
      together.insert(ids.begin(), ids.end());
    }
    EXPECT_EQ(together.size(), all) << "two replicas read one sample";
    EXPECT_LT(*together.rbegin(), samples);
    EXPECT_GT(static_cast<int64_t>(all), samples - 14);
  }
}

// The weights of a stage are stored once, and a resume of all replicas goes on bit for bit.
TEST(Replicas, ResumeIsBitIdentical) {
  WorldShape shape;
  shape.replicas = {4, 3};
  shape.steps = 8;
  shape.checkpoint_every = 4;
  World whole(MakePlan(shape));
  for (const absl::Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << status;
  MemoryStore store(whole.store());
  World::Options options;
  options.store = &store;
  World resumed(MakePlan(shape, 2, 4), options);
  for (const absl::Status& status : resumed.Run()) ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(resumed.Weights(8), whole.Weights(8));
}

// Lossy reductions: all replicas go on with the same weights, whatever the codec.
TEST(Replicas, LossyReductionsKeepTheReplicasEqual) {
  for (const char* codec : {"bf16", "quant(4)", "ef(topk(0.25))", "ef(lowrank(1))"}) {
    WorldShape shape;
    shape.replicas = {3, 3, 1};
    shape.gradients = codec;
    shape.hidden = 256;
    shape.buckets = 3;
    const bool by_matrix = ByMatrix(ParseCodec(codec).value());
    shape.stages = by_matrix ? 1 : 2;  // the fake's one matrix is there
    if (!by_matrix) shape.tied = codec;
    const Plan plan = MakePlan(shape);
    std::vector<Stage*> stages(plan.ranks_size());
    World::Options options;
    options.make_stage = [&](const Plan& p, int rank) -> absl::StatusOr<std::unique_ptr<Stage>> {
      auto stage = FakeStages()(p, rank);
      if (stage.ok()) stages[rank] = stage->get();
      return stage;
    };
    World world(plan, options);
    for (const absl::Status& status : world.Run()) ASSERT_TRUE(status.ok()) << codec << status;
    for (int r = shape.stages; r < plan.ranks_size(); ++r) {
      EXPECT_EQ(WeightsOf(*stages[r]), WeightsOf(*stages[r % shape.stages]))
          << codec << " rank " << r;
    }
  }
}

// compression.gradient_stages 0: no group is coded (algorithms, T2.6). By matrix a resume is exact.
TEST(Replicas, GradientStagesAndAResumeByMatrix) {
  WorldShape shape;
  shape.replicas = {4, 3};
  const Outcome plain = RunToTheEnd(shape);
  shape.gradients = "quant(2)";
  shape.gradient_stages = 0;
  EXPECT_EQ(RunToTheEnd(shape).weights, plain.weights);
  shape.gradient_stages = 1;
  EXPECT_NE(RunToTheEnd(shape).weights, plain.weights);

  shape = WorldShape();
  shape.stages = 1;
  shape.replicas = {4, 3};
  shape.gradients = "ef(lowrank(1))";
  shape.constant_rate = true;
  shape.steps = 8;
  shape.checkpoint_every = 4;
  const Outcome whole = RunToTheEnd(shape);
  MemoryStore store;
  MemoryStates states, lost;
  WorldShape first = shape;
  first.steps = 4;
  World::Options options;
  options.store = &store;
  options.codec_states = &states;
  World before(MakePlan(first), options);
  for (const absl::Status& status : before.Run()) ASSERT_TRUE(status.ok()) << status;
  const MemoryStore half(store);
  World after(MakePlan(shape, 2, 4), options);
  for (const absl::Status& status : after.Run()) ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(after.Weights(8), whole.weights);
  MemoryStore again(half);
  options.store = &again;
  options.codec_states = &lost;
  World without(MakePlan(shape, 3, 4), options);
  for (const absl::Status& status : without.Run()) ASSERT_TRUE(status.ok()) << status;
  EXPECT_NE(without.Weights(8), whole.weights) << "the residuals change nothing";
}

// One replica sees what is not finite: none of them steps.
TEST(Replicas, AStepCommitsOnAllOrOnNone) {
  WorldShape shape;
  shape.replicas = {4, 3};
  const Plan plan = MakePlan(shape);
  World::Options options;
  options.make_stage = FakeStages([](int rank, int64_t step, const std::string& operation) {
    StageFault fault;
    fault.loss_is_nan = rank == 3 && step == 2 && operation == "forward";
    return absl::StatusOr<StageFault>(fault);
  });
  World world(plan, options);
  for (const absl::Status& status : world.Run()) ASSERT_TRUE(status.ok()) << status;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    for (const StepRecord& record : world.observer(r).records())
      EXPECT_EQ(record.committed(), record.step() != 2) << "rank " << r;
  }
}

TEST(Replicas, AStopEndsAllOfThem) {
  WorldShape shape;
  shape.replicas = {3, 2, 2};
  shape.steps = 100000;
  World world(MakePlan(shape));
  world.Start();
  world.session(5).RequestStop();  // the last stage of the last replica
  for (const absl::Status& status : world.Join()) EXPECT_TRUE(status.ok()) << status;
  const int64_t step = world.session(0).step();
  EXPECT_LT(step, shape.steps);
  for (int r = 1; r < 6; ++r) EXPECT_EQ(world.session(r).step(), step);
}

// Two stages in two replicas: the tied embedding of all four ranks and the gradients of each stage.
TEST(Replicas, RecordsSayWhatEachGroupCost) {
  WorldShape shape;
  shape.replicas = {4, 3};
  shape.gradients = "bf16";
  shape.hidden = 256;
  shape.buckets = 2;  // all parts of a stage are one figure
  World world(MakePlan(shape));
  for (const absl::Status& status : world.Run()) ASSERT_TRUE(status.ok()) << status;
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<StepRecord> records = world.observer(rank).records();
    ASSERT_THAT(records, SizeIs(shape.steps));
    for (const StepRecord& record : records) {
      int64_t raw = 0, raw_on_links = 0;
      double reduce_s = 0;
      std::set<std::string> names;
      for (const GroupRecord& group : record.groups()) {
        names.insert(group.group_id());
        raw += group.raw_bytes();
        reduce_s += group.reduce_s();
        EXPECT_GT(group.wire_bytes(), 0) << group.group_id();
        EXPECT_GE(group.reduce_s(), group.wait_s());
        EXPECT_GE(group.wait_s(), 0);
      }
      const int stage = world.plan().ranks(rank).stage();
      EXPECT_EQ(names, (std::set<std::string>{"tied", absl::StrCat("stage ", stage)}));
      for (const DirectionBytes& d : record.directions()) {
        for (const LinkPlan& link : world.plan().links()) {
          if (link.id() == d.link_id() && link.kind() == LinkPlan::GROUP)
            raw_on_links += d.raw_bytes();
        }
      }
      EXPECT_EQ(raw, raw_on_links) << "every byte on a group's link is of a group";
      EXPECT_GT(raw, 0);
      EXPECT_GE(record.sync_s(), reduce_s);
    }
  }
}

TEST(Replicas, OneThatDiesEndsTheSessionOfAllInWords) {
  WorldShape shape;
  shape.replicas = {4, 3};
  const Plan plan = MakePlan(shape);
  World::Options options;
  options.make_stage = FakeStages([](int rank, int64_t step, const std::string& operation) {
    if (rank == 2 && step == 3 && operation == "backward")
      return absl::StatusOr<StageFault>(absl::InternalError("the fan stopped"));
    return absl::StatusOr<StageFault>(StageFault());
  });
  World world(plan, options);
  for (const absl::Status& status : world.Run()) {
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("the fan stopped"));
    EXPECT_THAT(
        std::string(status.message()),
        testing::HasSubstr("stage 0 of replica 1 (node-2, 10.0.0.3:7071) failed at step 3"));
  }
}

}  // namespace
}  // namespace isthmus::worker
