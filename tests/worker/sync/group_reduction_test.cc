#include "worker/sync/group_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "proto/codec/codec_text.h"
#include "proto/model/stage_shapes.h"
#include "proto/plan/groups.h"
#include "tests/worker/sync/group_of_ranks.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

TEST(GroupReduction, AllRanksHoldTheSameBitsAndTheSum) {
  for (const GroupPlan::Rule rule : {GroupPlan::EXCHANGE, GroupPlan::SHARDED}) {
    for (int ranks : {2, 3, 5}) {
      for (const char* codec : {"none", "bf16", "none | zstd", "quant(8)", "ef(topk(0.5))"}) {
        const int64_t rows = 7, width = 8, count = rows * width - 3;  // the last row is not full
        const auto gradients = SomeGradients(ranks, count);
        Group group(GroupOf(ranks, rule, codec, rows, width), gradients);
        const absl::Status done = group.Step(0);
        ASSERT_TRUE(done.ok()) << codec << done;
        for (int r = 1; r < ranks; ++r)
          EXPECT_EQ(group.values(r), group.values(0)) << codec << " " << ranks << " " << rule;
        if (std::string(codec).find("topk") != std::string::npos) continue;
        const float near = codec[0] == 'n' ? 1e-5f : 0.03f * static_cast<float>(ranks);
        for (int64_t i = 0; i < count; ++i) {
          float sum = 0;
          for (const auto& g : gradients) sum += g[i];
          EXPECT_NEAR(group.values(0)[i], sum, near) << codec << " " << ranks << " " << rule;
        }
      }
    }
  }
}

// Two ends of a tied embedding: each adds the first's part and the last's, in that order.
TEST(GroupReduction, AnExchangeAddsInTheOrderOfTheRanks) {
  const std::vector<std::vector<float>> gradients = {{1e8f, 1}, {1, 1e-8f}, {-1e8f, 0}};
  Group group(GroupOf(3, GroupPlan::EXCHANGE, "none", 1, 2), gradients);
  ASSERT_TRUE(group.Step(0).ok());
  EXPECT_EQ(group.values(2), (std::vector<float>{(1e8f + 1) - 1e8f, 1 + 1e-8f}));
}

// Fewer rows than ranks: some own nothing.
TEST(GroupReduction, ARankMayOwnNothing) {
  const auto gradients = SomeGradients(5, 6);
  Group group(GroupOf(5, GroupPlan::SHARDED, "bf16", 2, 4), gradients);
  ASSERT_TRUE(group.Step(0).ok());
  for (int r = 1; r < 5; ++r) EXPECT_EQ(group.values(r), group.values(0));
}

// Reduce-scatter and all-gather: 2 (n - 1) / n of the tensors a rank, instead of n - 1 times them.
TEST(GroupReduction, ShardedMovesLess) {
  for (int ranks : {2, 4}) {
    const auto gradients = SomeGradients(ranks, 64);
    Group exchange(GroupOf(ranks, GroupPlan::EXCHANGE, "none", 8, 8), gradients);
    Group sharded(GroupOf(ranks, GroupPlan::SHARDED, "none", 8, 8), gradients);
    ASSERT_TRUE(exchange.Step(0).ok());
    ASSERT_TRUE(sharded.Step(0).ok());
    EXPECT_EQ(exchange.bytes(), ranks * (ranks - 1) * 256);
    EXPECT_EQ(sharded.bytes(), 2 * (ranks - 1) * 256);
  }
}

// Most tokens of a vocabulary do not occur in a step.
TEST(GroupReduction, RowsOfZerosCostNothingWithZstd) {
  std::vector<std::vector<float>> gradients(2, std::vector<float>(800, 0.0f));
  gradients[0][0] = 0.3f;
  Group group(GroupOf(2, GroupPlan::EXCHANGE, "none | zstd", 100, 8), gradients);
  ASSERT_TRUE(group.Step(0).ok());
  EXPECT_LT(group.bytes(), 128);
  EXPECT_EQ(group.values(1)[0], 0.3f);
}

// quantized_adam: fp32 in the warm-up, then parts of the moment by the codec; the fake adds 100
// times its share.
TEST(GroupReduction, MomentumIsExactInTheWarmUp) {
  Plan plan = GroupOf(2, GroupPlan::SHARDED, "quant(8)", 4, 8);
  plan.mutable_job()->mutable_recipe()->set_optimizer("quantized_adam");
  plan.mutable_job()->mutable_recipe()->set_optimizer_warmup(3);
  plan.mutable_groups(0)->set_value(GroupPlan::MOMENTUM);
  const auto gradients = SomeGradients(2, 32);
  for (const int64_t step : {2, 3}) {
    Group group(plan, gradients);
    const absl::Status done = group.Step(step);
    ASSERT_TRUE(done.ok()) << done;
    EXPECT_EQ(group.values(1), group.values(0));
    const float sum = gradients[0][5] + gradients[1][5];
    if (step == 2) {
      EXPECT_EQ(group.values(0)[5], sum);
    } else {
      EXPECT_NEAR(group.values(0)[5], 100 + sum, 2);
      EXPECT_NE(group.values(0)[5], 100 + sum);
    }
  }
}

// What a step leaves out comes in the next ones: over many steps the sums meet the true ones.
TEST(GroupReduction, ErrorFeedbackAtTheContributions) {
  const auto gradients = SomeGradients(3, 32);
  const Plan plan = GroupOf(3, GroupPlan::SHARDED, "ef(topk(0.25))", 4, 8);
  std::vector<double> total(32);
  constexpr int kSteps = 200;
  Group group(plan, gradients);
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(group.Step(step).ok());
    for (int i = 0; i < 32; ++i) total[i] += group.values(0)[i];
    for (int r = 0; r < 3; ++r) group.Set(r, gradients[r]);
  }
  for (int i = 0; i < 32; ++i) {
    double sum = 0;
    for (const auto& g : gradients) sum += g[i];
    EXPECT_NEAR(total[i] / kSteps, sum, 0.2) << i;
  }
}

// T11.5: what was added up and what is left over are all that was given, to rounding: with nothing
// more to give, what is left over comes too.
TEST(GroupReduction, ErrorFeedbackLosesNothing) {
  for (const char* codec : {"ef(topk(0.25))", "ef(quant(4, token, symmetric))"}) {
    const auto gradients = SomeGradients(3, 32);
    Group group(GroupOf(3, GroupPlan::SHARDED, codec, 4, 8), gradients);
    std::vector<double> total(32);
    constexpr int kGiven = 5, kRest = 60;
    for (int step = 0; step < kGiven + kRest; ++step) {
      for (int r = 0; r < 3; ++r)
        group.Set(r, step < kGiven ? gradients[r] : std::vector<float>(32, 0.0f));
      ASSERT_TRUE(group.Step(step).ok());
      for (int i = 0; i < 32; ++i) total[i] += group.values(0)[i];
    }
    for (int i = 0; i < 32; ++i) {
      double sum = 0;
      for (const auto& g : gradients) sum += kGiven * static_cast<double>(g[i]);
      EXPECT_NEAR(total[i], sum, 1e-4) << codec << " " << i;
    }
  }
}

// A group whose tensors are matrices of their own: PowerSGD (arXiv 1905.13727).
Plan MatricesOf(int ranks, const char* codec, const std::vector<TensorDims>& tensors) {
  Plan plan = GroupOf(ranks, GroupPlan::SHARDED, "none", ElementsOf(tensors), 1);
  GroupPlan* group = plan.mutable_groups(0);
  *group->mutable_contribution() = ParseCodec(codec).value();
  *group->mutable_sum() = ParseCodec(codec).value();
  for (const TensorDims& d : tensors) {
    MatrixShape* shape = group->add_shapes();
    shape->set_rows(d.positions);
    shape->set_width(d.hidden);
  }
  return plan;
}

// Matrices of rank one, the same one on all ranks but for a factor, and vectors of anything.
std::vector<std::vector<float>> RankOne(int ranks, const std::vector<TensorDims>& tensors) {
  std::vector<std::vector<float>> all(ranks);
  for (int r = 0; r < ranks; ++r) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (int64_t i = 0; i < tensors[t].positions; ++i) {
        for (int64_t j = 0; j < tensors[t].hidden; ++j) {
          const double left = tensors[t].positions == 1 ? 1 : std::sin(1.0 + i + 10.0 * t);
          const double right = std::cos(0.3 * j + (tensors[t].positions == 1 ? r : 0));
          all[r].push_back(static_cast<float>((r + 1) * left * right));
        }
      }
    }
  }
  return all;
}

const std::vector<TensorDims> kTensors = {{1, 1, 9}, {1, 6, 8}, {1, 1, 5}, {1, 12, 4}, {1, 4, 4}};

TEST(GroupReduction, ByMatrixAllRanksHoldTheSameBits) {
  for (int ranks : {2, 3, 5}) {
    for (const char* codec : {"lowrank(1)", "ef(lowrank(1))", "ef(lowrank(2, values=bf16))"}) {
      const auto gradients = SomeGradients(ranks, ElementsOf(kTensors));
      Group group(MatricesOf(ranks, codec, kTensors), gradients);
      for (int step = 0; step < 3; ++step) {
        const absl::Status done = group.Step(step);
        ASSERT_TRUE(done.ok()) << codec << done;
        for (int r = 1; r < ranks; ++r) EXPECT_EQ(group.values(r), group.values(0)) << codec;
      }
    }
  }
}

// Vectors are not touched; a matrix of that rank arrives whole, and takes rows + columns.
TEST(GroupReduction, ByMatrixWhatHasThatRankArrives) {
  const auto gradients = RankOne(3, kTensors);
  Group group(MatricesOf(3, "lowrank(1)", kTensors), gradients);
  ASSERT_TRUE(group.Step(0).ok());
  for (int64_t i = 0; i < ElementsOf(kTensors); ++i) {
    float sum = 0;
    for (const auto& g : gradients) sum += g[i];
    EXPECT_NEAR(group.values(0)[i], sum, 1e-5f * 12) << i;
  }
  // Each part goes to its owner from two others, and its sum back to two.
  EXPECT_EQ(group.bytes(), 4 * 4 * (9 + (6 + 8) + 5 + (12 + 4) + (4 + 4)));
}

// What a low rank leaves out comes in the next steps, both of contributions and of sums.
TEST(GroupReduction, ByMatrixErrorFeedbackMeetsTheTrueSum) {
  const int64_t count = ElementsOf(kTensors);
  const auto gradients = SomeGradients(3, count);
  const auto mean_error = [&](const char* codec) {
    Group group(MatricesOf(3, codec, kTensors), gradients);
    std::vector<double> total(count);
    constexpr int kSteps = 200;
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(group.Step(step).ok());
      for (int64_t i = 0; i < count; ++i) total[i] += group.values(0)[i];
      for (int r = 0; r < 3; ++r) group.Set(r, gradients[r]);
    }
    double worst = 0;
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (const auto& g : gradients) sum += g[i];
      worst = std::max(worst, std::abs(total[i] / kSteps - sum));
    }
    return worst;
  };
  EXPECT_LT(mean_error("ef(lowrank(1))"), 0.15);
  EXPECT_GT(mean_error("lowrank(1)"), 0.3) << "the test sees nothing";
}

// F56: one that averages over itself alone must not come to zero. There is no such group: a replica
// alone keeps its gradient as it is, and a plan that says otherwise is refused.
TEST(GroupReduction, AGroupOfOneIsRefused) {
  for (const GroupPlan::Rule rule : {GroupPlan::EXCHANGE, GroupPlan::SHARDED}) {
    EXPECT_THAT(SessionPlan::Make(GroupOf(1, rule, "none", 2, 4), 0).status().message(),
                HasSubstr("group stage 0: it has fewer than two ranks"));
  }
}

TEST(GroupReduction, AStageOfAnotherSizeIsAnError) {
  Group group(GroupOf(2, GroupPlan::EXCHANGE, "none", 2, 4), SomeGradients(2, 4));
  EXPECT_THAT(group.Step(0).message(), HasSubstr("the stage has 4 elements"));
}

}  // namespace
}  // namespace isthmus::worker
