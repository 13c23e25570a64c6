#include "worker/engine/rounds.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/stage_tensors.h"

namespace isthmus::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

class RoundsTest : public ::testing::Test {
 protected:
  RoundsTest() {
    Add("transformer.wte.weight", {1, 2, 3}, true);
    Add("transformer.h.0.ln_1.weight", {4, 5}, false);
    Add("transformer.h.0.ln_1.bias", {6}, false);
  }
  void Add(const std::string& name, const std::vector<float>& values, bool tied) {
    Parameter p;
    p.spec.name = name;
    p.spec.shape = {static_cast<int64_t>(values.size())};
    p.tied = tied;
    p.value = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
    p.state = ZeroState(p.value);
    parameters_.push_back(std::move(p));
    Set(static_cast<int>(parameters_.size()) - 1, values);
  }
  void Set(int i, const std::vector<float>& values) {
    std::copy(values.begin(), values.end(), parameters_[i].value.data_ptr<float>());
  }
  std::vector<float> Get(int i) const {
    const float* w = parameters_[i].value.data_ptr<float>();
    return {w, w + parameters_[i].value.numel()};
  }

  std::vector<Parameter> parameters_;
  Rounds rounds_;
};

TEST_F(RoundsTest, DifferencesAreOfTheWeightsAgreedOn) {
  rounds_.Begin(parameters_);
  Set(1, {3, 7});
  Set(2, {6.5});
  std::vector<float> d(2);
  ASSERT_TRUE(rounds_.Read(parameters_, GroupPlan::OWN, 1, absl::MakeSpan(d)).ok());
  EXPECT_THAT(d, ElementsAre(-2, -0.5));
  EXPECT_EQ(rounds_.Read(parameters_, GroupPlan::OWN, 2, absl::MakeSpan(d)).code(),
            absl::StatusCode::kInvalidArgument);
}

// m := mu m + d; w := w - eta (d + mu m): algorithm 1 of arXiv 2311.08105 with Nesterov's momentum.
TEST_F(RoundsTest, TheOuterStepIsNesterovs) {
  rounds_.Begin(parameters_);
  const worker::OuterStep step{0.5, 0.8};
  const std::vector<float> d = {1, 2, 4};
  Set(1, {100, 100});  // where the replica came to is of no concern
  ASSERT_TRUE(rounds_.Apply(GroupPlan::OWN, 0, d, step, &parameters_).ok());
  EXPECT_THAT(Get(1), ElementsAre(FloatEq(4 - 0.5 * 1.8), FloatEq(5 - 0.5 * 3.6)));
  EXPECT_THAT(Get(2), ElementsAre(FloatEq(6 - 0.5 * 7.2)));
  EXPECT_THAT(Get(0), ElementsAre(1, 2, 3)) << "another set";
  ASSERT_TRUE(rounds_.Apply(GroupPlan::OWN, 0, d, step, &parameters_).ok());
  const double m = 0.8 * 4 + 4;
  EXPECT_THAT(Get(2), ElementsAre(FloatEq(6 - 0.5 * 7.2 - 0.5 * (4 + 0.8 * m))));
  EXPECT_EQ(rounds_.Apply(GroupPlan::OWN, 2, {d.data(), 2}, step, &parameters_).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RoundsTest, WithoutMomentumItIsTheMeanOfTheWeights) {
  rounds_.Begin(parameters_);
  // Two replicas at 2 and 8: differences 4 and -2 of 6, mean 1; the mean of the weights is 5.
  ASSERT_TRUE(rounds_.Apply(GroupPlan::OWN, 0, {0, 0, 1}, {1, 0}, &parameters_).ok());
  EXPECT_THAT(Get(2), ElementsAre(5));
}

// A fragment, of which the replica keeps a share of its own (arXiv 2501.18512).
TEST_F(RoundsTest, APartOfTheSetMayBeMixed) {
  rounds_.Begin(parameters_);
  Set(1, {100, 200});
  worker::OuterStep step{1, 0};
  step.mix = 0.25;
  ASSERT_TRUE(rounds_.Apply(GroupPlan::OWN, 1, {1}, step, &parameters_).ok());
  EXPECT_THAT(Get(1), ElementsAre(100, FloatEq(0.25 * 200 + 0.75 * (5 - 1))));
  EXPECT_THAT(Get(2), ElementsAre(6));
  std::vector<float> d(3);
  ASSERT_TRUE(rounds_.Read(parameters_, GroupPlan::OWN, 0, absl::MakeSpan(d)).ok());
  EXPECT_THAT(d, ElementsAre(4 - 100, FloatEq(4 - 53), 0)) << "agreed on is what all hold";
  ASSERT_TRUE(rounds_.Restore(GroupPlan::OWN, 1, 2, &parameters_).ok());
  EXPECT_THAT(Get(1), ElementsAre(100, 4));
}

TEST_F(RoundsTest, RestoreTakesTheWeightsBack) {
  rounds_.Begin(parameters_);
  Set(0, {7, 7, 7});
  ASSERT_TRUE(rounds_.Restore(GroupPlan::TIED, 0, 3, &parameters_).ok());
  EXPECT_THAT(Get(0), ElementsAre(1, 2, 3));
  Set(0, {9, 9, 9});
  rounds_.Agree(0, 0, {9, 8});
  rounds_.Agree(0, 1, {9, 9});
  Set(0, {7, 7, 7});
  ASSERT_TRUE(rounds_.Restore(GroupPlan::TIED, 0, 3, &parameters_).ok());
  EXPECT_THAT(Get(0), ElementsAre(9, 9, 9));
}

TEST_F(RoundsTest, MomentumIsStoredByName) {
  StageTensors tensors{parameters_, rounds_, false};
  EXPECT_EQ(tensors.List().size(), 3u * 3);
  rounds_.Begin(parameters_);
  const std::vector<worker::StageTensor> list = tensors.List();
  ASSERT_EQ(list.size(), 3u * 4);
  for (int i = 0; i < 12; ++i) {
    const worker::StageTensor& tensor = list[i];
    const int p = i < 3 ? i : (i - 3) / 3;
    EXPECT_EQ(tensor.shape, parameters_[p].spec.shape) << tensor.name;
    EXPECT_EQ(tensor.copy, parameters_[p].tied) << tensor.name;
    EXPECT_EQ(tensor.weight(), i < 3) << tensor.name;
    EXPECT_EQ(tensor.kind == worker::StageTensor::kOuterMomentum, i >= 3 && i % 3 == 2);
    std::vector<float> values(tensor.elements() + 1);
    const absl::Span<float> all(values.data(), tensor.elements());
    EXPECT_TRUE(tensors.Read(i, 0, all).ok());
    EXPECT_EQ(tensors.Read(i, 0, absl::MakeSpan(values)).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(tensors.Write(i, 0, all, &rounds_).ok());
    EXPECT_EQ(tensors.Write(i, 1, all, &rounds_).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(list[0].name, "transformer.wte.weight");
  EXPECT_EQ(list[3].name, "transformer.wte.weight.exp_avg");
  EXPECT_EQ(list[4].name, "transformer.wte.weight.exp_avg_sq");
  float one = 0;
  EXPECT_FALSE(tensors.Read(12, 0, {&one, 1}).ok());
  EXPECT_FALSE(tensors.Read(-1, 0, {&one, 1}).ok());
}

TEST_F(RoundsTest, BeforeTheyBeginIsAnError) {
  std::vector<float> d(3);
  for (const absl::Status& status :
       {rounds_.Read(parameters_, GroupPlan::OWN, 0, absl::MakeSpan(d)),
        rounds_.Apply(GroupPlan::OWN, 0, d, {}, &parameters_),
        rounds_.Restore(GroupPlan::OWN, 0, 3, &parameters_)})
    EXPECT_THAT(std::string(status.message()), HasSubstr("has not begun"));
}

}  // namespace
}  // namespace isthmus::engine
