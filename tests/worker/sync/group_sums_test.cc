// What the sums of a group stand for: a step on the mean gradient, two sums in one, and nothing
// lost but what is said (algorithms T2.5, T11.1, T11.5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/link/memory_states.h"
#include "tests/worker/sync/group_of_ranks.h"
#include "worker/sync/group_reduction.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 4, kWidth = 8, kCount = kRows * kWidth;
constexpr char kFeedback[] = "ef(quant(4, token, symmetric))";

// Weights after steps of plain SGD since the replicas agreed on others.
class Sgd : public Gradients {
 public:
  Sgd(std::vector<float> agreed, const std::vector<float>& gradient, float rate)
      : Gradients(agreed), agreed_(std::move(agreed)) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] -= rate * gradient[i];
  }
  absl::Status ReadDifference(GroupPlan::Tensors, int64_t first, absl::Span<float> out) override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = agreed_[first + i] - values_[first + i];
    return absl::OkStatus();
  }
  absl::Status ApplyDifference(GroupPlan::Tensors, int64_t first, absl::Span<const float> d,
                               const OuterStep& step) override {
    EXPECT_EQ(step.momentum, 0);
    EXPECT_EQ(step.mix, 0);
    for (size_t i = 0; i < d.size(); ++i) {
      agreed_[first + i] -= static_cast<float>(step.learning_rate) * d[i];
      values_[first + i] = agreed_[first + i];
    }
    return absl::OkStatus();
  }

 private:
  std::vector<float> agreed_;
};

// T11.1: one local step of SGD, then outer SGD of rate 1, is a step on the mean gradient of the
// batch, weighted by each replica's samples.
TEST(GroupSums, LocalSgdOfOneStepIsAStepOnTheMeanGradient) {
  for (const std::vector<int>& samples : {std::vector<int>{2, 2}, {1, 3, 2}, {4, 1, 1, 3, 1}}) {
    const int ranks = static_cast<int>(samples.size());
    Plan plan = GroupOf(ranks, GroupPlan::SHARDED, "none", kRows, kWidth);
    int batch = 0;
    for (int r = 0; r < ranks; ++r) {
      plan.mutable_replicas(r)->set_samples(samples[r]);
      batch += samples[r];
    }
    plan.mutable_job()->mutable_recipe()->set_global_batch(batch);
    StrategySpec* strategy = plan.mutable_job()->mutable_strategy();
    strategy->set_local_steps(2);
    strategy->set_outer_learning_rate(1);
    strategy->set_outer_momentum(0);
    plan.mutable_groups(0)->set_value(GroupPlan::DIFFERENCE);
    ASSERT_TRUE(WriteActions({}, &plan).ok());
    constexpr float kRate = 0.3F;
    const auto gradients = SomeGradients(ranks, kCount);
    const std::vector<float> weights = SomeGradients(ranks + 1, kCount).back();
    std::vector<std::unique_ptr<Gradients>> stages;
    for (const auto& g : gradients) stages.push_back(std::make_unique<Sgd>(weights, g, kRate));
    Group group(plan, std::move(stages));
    ASSERT_TRUE(group.Step(0).ok());
    for (int r = 0; r < ranks; ++r)
      ASSERT_TRUE(group.reduction(r).Settle(true, 0, group.stage(r)).ok());
    for (int64_t i = 0; i < kCount; ++i) {
      double mean = 0;
      for (int r = 0; r < ranks; ++r)
        mean += static_cast<double>(samples[r]) / batch * gradients[r][i];
      for (int r = 0; r < ranks; ++r)
        EXPECT_NEAR(group.values(r)[i], weights[i] - kRate * mean, 1e-6)
            << ranks << " ranks, " << i;
    }
  }
}

// T2.5: the four ends of a tied embedding in two replicas reduce in one sum what would else be two
// sums of the stages and one of the ends. Whole numbers: floats add them up exactly.
TEST(GroupSums, OneSumOfFourIsTwoStepsOfTwo) {
  std::vector<std::vector<float>> gradients = SomeGradients(4, kCount);
  for (auto& g : gradients) {
    for (float& v : g) v = std::round(1000 * v);
  }
  const auto sum = [](const std::vector<float>& a, const std::vector<float>& b,
                      GroupPlan::Rule rule) {
    Group two(GroupOf(2, rule, "none", kRows, kWidth), {a, b});
    EXPECT_TRUE(two.Step(0).ok());
    EXPECT_EQ(two.values(0), two.values(1));
    return two.values(0);
  };
  for (const GroupPlan::Rule rule : {GroupPlan::EXCHANGE, GroupPlan::SHARDED}) {
    const std::vector<float> first = sum(gradients[0], gradients[2], GroupPlan::SHARDED);
    const std::vector<float> last = sum(gradients[1], gradients[3], GroupPlan::SHARDED);
    const std::vector<float> both = sum(first, last, GroupPlan::EXCHANGE);
    Group fused(GroupOf(4, rule, "none", kRows, kWidth), gradients);
    ASSERT_TRUE(fused.Step(0).ok());
    for (int r = 0; r < 4; ++r) EXPECT_EQ(fused.values(r), both) << "rank " << r;
  }
}

// Gives `gradients` for so many steps, then nothing for `rest`; the sum of what was applied.
std::vector<double> Applied(Group* group, const std::vector<std::vector<float>>& gradients,
                            int given, int rest, int64_t first) {
  std::vector<double> total(kCount);
  for (int step = 0; step < given + rest; ++step) {
    for (size_t r = 0; r < gradients.size(); ++r) {
      group->Set(static_cast<int>(r),
                 step < given ? gradients[r] : std::vector<float>(kCount, 0.0F));
    }
    EXPECT_TRUE(group->Step(first + step).ok());
    for (int64_t i = 0; i < kCount; ++i) total[i] += group->values(0)[i];
  }
  return total;
}

Plan Resumed(int ranks, int64_t step) {
  Plan plan = GroupOf(ranks, GroupPlan::SHARDED, kFeedback, kRows, kWidth);
  plan.set_generation(2);
  plan.set_start_step(step);
  plan.set_from_checkpoint(true);
  return plan;
}

// T11.5 where a replica leaves. What was applied and the residuals are what was given. As many
// replicas that resume take their residuals up, and all of it arrives; with fewer, other rows
// belong to other owners: all residuals begin anew, so what the codec still owed is lost, once, and
// nothing of it comes a second time.
TEST(GroupSums, ResidualsOfOneThatLeavesAreLostAndNothingElse) {
  constexpr int kGiven = 5, kRest = 60;
  const auto gradients = SomeGradients(3, kCount);
  MemoryStates states;
  states.Begin("job-world", 0);
  Group group(GroupOf(3, GroupPlan::SHARDED, kFeedback, kRows, kWidth), gradients, &states);
  const std::vector<double> before = Applied(&group, gradients, kGiven, 0, 0);
  for (int r = 0; r < 3; ++r) group.reduction(r).SaveStates(kGiven);

  Group again(Resumed(3, kGiven), gradients, &states);
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(again.reduction(r).LoadStates().value(), HasSubstr("goes on"));
  }
  const std::vector<double> owed = Applied(&again, gradients, 0, kRest, kGiven);
  double lost = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    double given = 0;
    for (const auto& g : gradients) given += kGiven * static_cast<double>(g[i]);
    EXPECT_NEAR(before[i] + owed[i], given, 1e-4) << i;
    lost = std::max(lost, std::abs(owed[i]));
  }
  EXPECT_GT(lost, 1e-3) << "the codec owes nothing: the test can't fail";

  const std::vector<std::vector<float>> left = {gradients[0], gradients[1]};
  Group two(Resumed(2, kGiven), left, &states);
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(two.reduction(r).LoadStates().value(), HasSubstr("new, its state is not here"));
  }
  EXPECT_EQ(Applied(&two, left, 0, 3, kGiven), std::vector<double>(kCount, 0.0));
  const std::vector<double> after = Applied(&two, left, kGiven, kRest, kGiven + 3);
  for (int64_t i = 0; i < kCount; ++i) {
    const double given = kGiven * (static_cast<double>(left[0][i]) + left[1][i]);
    EXPECT_NEAR(after[i], given, 1e-4) << i;
  }
}

}  // namespace
}  // namespace isthmus::worker
