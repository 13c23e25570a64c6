#include "worker/engine/versions.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace isthmus::engine {
namespace {

constexpr float kStart = 1;

// One parameter of two elements, by itself or flat.
void Fill(bool flat, Versions* versions) {
  Version& only = versions->newest();
  Parameter p;
  p.spec.name = "h.0.weight";
  p.spec.shape = {2};
  p.value = at::full({2}, kStart);
  only.parameters.push_back(std::move(p));
  if (flat) {
    only.flat = std::make_unique<FlatParameters>(c10::Device(c10::kCPU), Precision::kFp32,
                                                 &only.parameters);
    return;
  }
  Parameter& mine = only.parameters[0];
  mine.operand = mine.value.requires_grad_(true);
  mine.state = ZeroState(mine.value.detach());
}

float ValueOf(const Version& version) {
  return version.parameters[0].value.detach().data_ptr<float>()[1];
}

void SetGradient(float g, Version* version) {
  at::Tensor& grad = version->parameters[0].value.mutable_grad();
  if (grad.defined()) {
    grad.fill_(g);
  } else {
    grad = at::full({2}, g);
  }
}

class VersionsTest : public ::testing::TestWithParam<bool> {
 protected:
  VersionsTest() { Fill(GetParam(), &versions_); }
  // Adam's first step moves by the rate, whatever the gradient's size.
  void Step(double look_ahead) {
    versions_.Update({0.9, 0.95, 0, 0}, {++step_, 0.25, 1}, look_ahead);
    versions_.EndStep();
  }

  Versions versions_;
  int64_t step_ = 0;
};

TEST_P(VersionsTest, OrdinaryStepsHaveOne) {
  for (const bool train : {false, true}) EXPECT_EQ(versions_.For(train, false), 0);
  SetGradient(3, &versions_.ending());
  EXPECT_EQ(&versions_.ending(), &versions_.newest());
  Step(2);
  EXPECT_FLOAT_EQ(ValueOf(versions_.newest()), kStart - 0.25f);
}

TEST_P(VersionsTest, OverlappedStepsComputeWithOlderWeights) {
  versions_.BeginOverlapped();
  const int first = versions_.For(true, false), second = versions_.For(true, true);
  EXPECT_NE(first, second);
  EXPECT_EQ(versions_.For(false, false), 0);
  SetGradient(3, &versions_.ending());
  Step(0);
  EXPECT_FLOAT_EQ(ValueOf(versions_.newest()), kStart - 0.25f);
  // The second step ends next and has the weights from before; a third one begins with the newest.
  EXPECT_EQ(versions_.For(true, false), second);
  EXPECT_EQ(versions_.For(true, true), first);
  EXPECT_FLOAT_EQ(ValueOf(versions_.ending()), kStart);
  EXPECT_FLOAT_EQ(ValueOf(versions_.at(first)), kStart - 0.25f);
  // Its own gradients move the newest weights; those of the first step are gone.
  SetGradient(-3, &versions_.ending());
  Step(0);
  EXPECT_GT(ValueOf(versions_.newest()), kStart - 0.3f);
  EXPECT_FLOAT_EQ(ValueOf(versions_.at(second)), ValueOf(versions_.newest()));
}

TEST_P(VersionsTest, LooksAhead) {
  versions_.BeginOverlapped();
  const int first = versions_.For(true, false);
  SetGradient(3, &versions_.ending());
  Step(2);
  EXPECT_FLOAT_EQ(ValueOf(versions_.newest()), kStart - 0.25f);
  EXPECT_FLOAT_EQ(ValueOf(versions_.at(first)), kStart - 3 * 0.25f);
  // Nothing is under way: what follows takes the newest weights.
  versions_.BeginOverlapped();
  EXPECT_FLOAT_EQ(ValueOf(versions_.at(1)), kStart - 0.25f);
  EXPECT_FLOAT_EQ(ValueOf(versions_.at(2)), kStart - 0.25f);
}

TEST_P(VersionsTest, ASkippedStepLeavesTheWeights) {
  versions_.BeginOverlapped();
  SetGradient(3, &versions_.ending());
  const int ended = versions_.For(true, false);
  versions_.TakeNewest();
  EXPECT_EQ(versions_.EndStep(), ended);
  EXPECT_FLOAT_EQ(ValueOf(versions_.newest()), kStart);
  EXPECT_FLOAT_EQ(ValueOf(versions_.at(ended)), kStart);
}

INSTANTIATE_TEST_SUITE_P(Flat, VersionsTest, ::testing::Bool());

}  // namespace
}  // namespace isthmus::engine
