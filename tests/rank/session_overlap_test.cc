// Steps that overlap (proto/plan/overlap.h). With a stage of exact arithmetic a session of any cut
// does, bit for bit, what a few lines of the algorithm do: the gradient of a step is that at the
// weights before the last update, and at the newest ones where nothing was under way before it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/model/recipe.h"
#include "tests/worker/bare_stage.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"
#include "worker/session.h"

namespace isthmus::worker {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;
using ::testing::SizeIs;

WorldShape Overlapped(int stages) {
  WorldShape shape;
  shape.schedule = "overlap";
  shape.stages = stages;
  shape.steps = 9;
  return shape;
}

// Steps after which nothing is under way, by the plan alone.
std::set<int64_t> Drains(const WorldShape& shape) {
  std::set<int64_t> drains = {shape.steps - 1};
  for (int64_t step = 0; step < shape.steps; ++step) {
    for (const int64_t every : {shape.checkpoint_every, shape.eval_every}) {
      if (every > 0 && (step + 1) % every == 0) drains.insert(step);
    }
  }
  return drains;
}

// The algorithm on whole models: one computes gradients, the other has the newest weights.
// `skipped` did not commit.
Outcome RunAlone(WorldShape shape, const std::set<int64_t>& drains,
                 const std::set<int64_t>& skipped = {}) {
  const FakeCorpus corpus(23, 9, shape.context, shape.vocabulary);
  std::vector<SampleOrder> orders = ReplicaOrders(shape, corpus);
  shape.stages = 1;
  shape.replicas.clear();
  const Plan plan = MakePlan(shape);
  if (orders.empty())
    orders.emplace_back(plan.job().seed(), corpus.train_samples(), shape.global_batch);
  const auto gradients = FakeStages()(plan, 0).value(), newest = FakeStages()(plan, 0).value();
  Outcome outcome;
  std::string weights, before;  // newest, and those before the last update
  int64_t skips = 0;
  bool drained = true;
  for (int64_t step = 0; step < shape.steps; ++step) {
    weights = WeightsOf(*newest);
    EXPECT_TRUE(TakeWeights(drained ? weights : before, gradients.get()).ok());
    const double scale = 1.0 / (shape.global_batch * shape.context);
    double loss = 0;
    for (SampleOrder& order : orders)
      loss += RunPasses(gradients.get(), corpus, order.Step(step), shape, scale);
    outcome.losses.push_back(loss * scale);
    std::vector<float> g(gradients->Elements(GroupPlan::OWN));
    EXPECT_TRUE(gradients->ReadGradient(GroupPlan::OWN, 0, absl::MakeSpan(g)).ok());
    gradients->Discard();
    EXPECT_TRUE(newest->WriteGradient(GroupPlan::OWN, 0, g).ok());
    outcome.norms.push_back(std::sqrt(newest->Norm().sum_squares));
    if (skipped.count(step) > 0) {
      newest->Discard();
      ++skips;
    } else {
      OptimizerStep update;
      update.step = step + 1 - skips;
      update.learning_rate = LearningRate(plan.job().recipe(), step);
      update.gradient_scale = ClipScale(plan.job().recipe().clip_norm(), outcome.norms.back());
      EXPECT_TRUE(newest->Apply(update).ok());
    }
    before = weights;
    drained = drains.count(step) > 0;
    if (drained) before = WeightsOf(*newest);
  }
  outcome.weights = WeightsOf(*newest);
  return outcome;
}

void ExpectSame(const Outcome& world, const Outcome& alone) {
  EXPECT_THAT(world.losses, Pointwise(DoubleNear(1e-12), alone.losses));
  EXPECT_EQ(world.norms, alone.norms);
  EXPECT_EQ(world.weights, alone.weights);
}

TEST(Overlap, AnyCutDoesWhatTheAlgorithmDoes) {
  for (const auto& [checkpoints, validations] : {std::pair{0, 0}, {4, 0}, {0, 3}, {2, 3}}) {
    for (int stages : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(absl::StrCat(stages, " stages, ", checkpoints, ", ", validations));
      WorldShape shape = Overlapped(stages);
      shape.checkpoint_every = checkpoints;
      shape.eval_every = validations;
      ExpectSame(RunToTheEnd(shape), RunAlone(shape, Drains(shape)));
    }
  }
}

// The comparison above can fail: a step's delay is not nothing.
TEST(Overlap, TheDelayChangesTheResult) {
  WorldShape shape = Overlapped(3);
  const Outcome overlapped = RunToTheEnd(shape);
  shape.schedule = "1f1b";
  const Outcome waiting = RunToTheEnd(shape);
  EXPECT_EQ(overlapped.losses[0], waiting.losses[0]);
  EXPECT_NE(overlapped.losses[2], waiting.losses[2]);
  EXPECT_NE(overlapped.weights, waiting.weights);
}

// Drained after each step it is 1F1B, bit for bit.
TEST(Overlap, WithoutDelayItIs1F1B) {
  for (int stages : {1, 3}) {
    WorldShape shape = Overlapped(stages);
    shape.checkpoint_every = 1;
    const Outcome drained = RunToTheEnd(shape);
    shape.schedule = "1f1b";
    ExpectSame(drained, RunToTheEnd(shape));
  }
}

TEST(Overlap, ReplicasDoTheSame) {
  for (const std::vector<int>& replicas : {std::vector<int>{4, 3}, {1, 5, 1}}) {
    for (int stages : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(replicas.size(), " x ", stages));
      WorldShape shape = Overlapped(stages);
      shape.micro_batch = 1;
      shape.replicas = replicas;
      shape.checkpoint_every = 5;
      const Outcome world = RunToTheEnd(shape), alone = RunAlone(shape, Drains(shape));
      EXPECT_THAT(world.losses, Pointwise(DoubleNear(1e-12), alone.losses));
      EXPECT_EQ(world.norms, alone.norms);
    }
  }
}

// More stages than micro-batches; queues and windows of one frame.
TEST(Overlap, FewMicroBatchesAndFullQueues) {
  WorldShape few = Overlapped(8);
  few.global_batch = few.micro_batch = 3;
  ExpectSame(RunToTheEnd(few), RunAlone(few, Drains(few)));
  WorldShape shape = Overlapped(4);
  shape.queue_limit = 1;
  shape.global_batch = 20;
  shape.micro_batch = 1;
  MemoryLinkOptions link_options;
  link_options.window_bytes = 1;
  MemoryLinkHub hub(link_options);
  World::Options options;
  options.links = &hub;
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(world.Losses(), Pointwise(DoubleNear(1e-12), RunAlone(shape, Drains(shape)).losses));
}

// Asked for while passes of the next step are under way: the stop comes after that one, everywhere,
// and a resume goes on from there.
TEST(Overlap, AStopDrainsFirst) {
  for (int asked = 0; asked < 3; ++asked) {
    SCOPED_TRACE(asked);
    WorldShape shape = Overlapped(3);
    shape.constant_rate = true;
    shape.steps = 100000;
    World* running = nullptr;
    MemoryStore store;
    World::Options options;
    options.store = &store;
    options.make_stage = FakeStages(
        [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
          if (running != nullptr && stage == asked && step == 4 && operation == "apply")
            running->session(stage).RequestStop();
          return StageFault{};
        });
    World world(MakePlan(shape), options);
    running = &world;
    for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
    running = nullptr;
    // Step 4 was decided when it was asked for; 5 heard of it, 6 is the last.
    for (int stage = 0; stage < 3; ++stage) EXPECT_EQ(world.session(stage).step(), 7);
    EXPECT_THAT(store.complete_steps(), ElementsAre(7));
    shape.steps = 10;
    World again(MakePlan(shape, 2, 7), options);
    for (const absl::Status& status : again.Run()) EXPECT_TRUE(status.ok()) << status;
    const Outcome alone = RunAlone(shape, {6, 9});
    std::vector<double> losses = world.last().losses();
    for (double loss : again.last().losses()) losses.push_back(loss);
    EXPECT_THAT(losses, Pointwise(DoubleNear(1e-12), alone.losses));
    EXPECT_EQ(again.Weights(10), alone.weights);
  }
}

TEST(Overlap, AnyStageMayAskForACheckpoint) {
  WorldShape shape = Overlapped(3);
  World* running = nullptr;
  World::Options options;
  options.make_stage = FakeStages(
      [&](int stage, int64_t step, const std::string& operation) -> absl::StatusOr<StageFault> {
        if (stage == 1 && step == 2 && operation == "apply")
          running->session(stage).RequestCheckpoint();
        return StageFault{};
      });
  World world(MakePlan(shape), options);
  running = &world;
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(world.store().complete_steps(), ElementsAre(5, 9));
  EXPECT_EQ(world.Weights(9), RunAlone(shape, {4, 8}).weights);
}

TEST(Overlap, AStepThatIsNotFiniteIsSkippedByAll) {
  for (const int64_t bad : {0, 3, 8}) {
    SCOPED_TRACE(bad);
    WorldShape shape = Overlapped(3);
    World::Options options;
    options.make_stage =
        FakeStages([&](int stage, int64_t step, const std::string&) -> absl::StatusOr<StageFault> {
          StageFault fault;
          fault.norm_is_infinite = stage == 1 && step == bad;
          return fault;
        });
    World world(MakePlan(shape), options);
    for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
    for (int stage = 0; stage < 3; ++stage) {
      const auto records = world.observer(stage).records();
      ASSERT_THAT(records, SizeIs(shape.steps));
      for (const StepRecord& r : records) EXPECT_EQ(r.committed(), r.step() != bad);
    }
    const Outcome alone = RunAlone(shape, Drains(shape), {bad});
    EXPECT_THAT(world.Losses(), Pointwise(DoubleNear(1e-12), alone.losses));
    EXPECT_EQ(world.Weights(9), alone.weights);
  }
}

// A model of one weight whose loss is (w - 3)^2 / 2 on any sample, by plain gradient descent.
class Quadratic : public BareStage {
 public:
  static constexpr double kBest = 3;
  explicit Quadratic(std::vector<double>* path) : path_(path) {}

  absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor) override {
    const bool next = overlaps_ && (batch.ahead || !batch.train);
    const double off = (next ? next_ : now_) - kBest;
    const auto tokens = static_cast<double>(batch.samples * batch.positions);
    if (batch.train)
      kept_[batch.micro] = {off * tokens * batch.loss_scale, settled_ + (next ? 1 : 0)};
    ForwardResult result;
    result.loss_sum = tokens * off * off / 2;
    return result;
  }
  absl::StatusOr<Tensor> Backward(int32_t micro, Tensor) override {
    const auto [gradient, ends_with] = kept_[micro];
    (ends_with == settled_ ? gradient_ : next_gradient_) += gradient;
    return Tensor{};
  }
  absl::Status BeginOverlapped() override {
    (overlaps_ ? now_ : next_) = overlaps_ ? next_ : now_;
    overlaps_ = true;
    return absl::OkStatus();
  }
  absl::Status Apply(const OptimizerStep& step) override {
    const double newest = (overlaps_ ? next_ : now_) - step.learning_rate * gradient_;
    gradient_ = next_gradient_;
    next_gradient_ = 0;
    now_ = overlaps_ ? next_ : newest;
    next_ = newest;
    ++settled_;
    path_->push_back(newest);
    return absl::OkStatus();
  }

 private:
  std::vector<double>* const path_;  // the weight after each step
  double now_ = 0, next_ = 0, gradient_ = 0, next_gradient_ = 0;
  bool overlaps_ = false;
  int64_t settled_ = 0;
  std::map<int32_t, std::pair<double, int64_t>> kept_;  // gradient, settled_ when its step ends
};

std::vector<double> Descend(const char* schedule, double rate) {
  WorldShape shape = Overlapped(1);
  shape.schedule = schedule;
  shape.steps = 400;
  shape.learning_rate = rate;
  shape.constant_rate = true;
  shape.eval_samples = 0;
  std::vector<double> path = {0};
  World::Options options;
  options.make_stage = [&](const Plan&, int) -> absl::StatusOr<std::unique_ptr<Stage>> {
    return std::make_unique<Quadratic>(&path);
  };
  World world(MakePlan(shape), options);
  for (const absl::Status& status : world.Run()) EXPECT_TRUE(status.ok()) << status;
  return path;
}

// Algorithms, 10.3: the fixed point is that of descent without delay. With curvature 1 and
// gradients one step old, w(t + 1) = w(t) - r (w(t - 1) - best), the roots of z^2 - z + r lie
// inside the unit circle for rates r below 1; without delay the bound is 2.
TEST(Overlap, OnAQuadraticItReachesTheOptimumBelowItsBoundAlone) {
  for (const double rate : {0.1, 0.25, 0.9}) {
    const std::vector<double> path = Descend("overlap", rate);
    ASSERT_THAT(path, SizeIs(401));
    for (size_t t = 1; t + 1 < path.size(); ++t)
      EXPECT_NEAR(path[t + 1], path[t] - rate * (path[t - 1] - Quadratic::kBest), 1e-12) << t;
    EXPECT_NEAR(path.back(), Quadratic::kBest, 1e-6) << rate;
  }
  EXPECT_GT(std::abs(Descend("overlap", 1.1).back() - Quadratic::kBest), 1e3);
  EXPECT_NEAR(Descend("1f1b", 1.1).back(), Quadratic::kBest, 1e-6);
}

}  // namespace
}  // namespace isthmus::worker
