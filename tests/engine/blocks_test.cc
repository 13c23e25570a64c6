#include "worker/engine/blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {
namespace {

constexpr int64_t kSamples = 2, kPositions = 6, kHidden = 8;
constexpr double kEpsilon = 1e-5;

BlockWeights Weights() {
  ModelSpec model;
  model.set_layers(3);
  model.set_hidden(kHidden);
  std::vector<at::Tensor> p;
  for (ParameterSpec spec : StageParameters(model, 1, 2)) {
    if (spec.init_std != 0) spec.init_std = 0.3;
    p.push_back(at::empty(spec.shape, at::kFloat));
    FillInitial(spec, 1, p.back().data_ptr<float>());
  }
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11]};
}

at::Tensor Input() {
  const at::Tensor x = at::empty({kSamples, kPositions, kHidden}, at::kFloat);
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data_ptr<float>()[i] = static_cast<float>(RandomUniform(2, 0, i) - 0.5);
  return x;
}

TEST(Blocks, APositionSeesOnlyItselfAndTheOnesBefore) {
  const at::Tensor mask = CausalMask(kPositions, at::kFloat);
  const BlockWeights w = Weights();
  const at::Tensor x = Input(), y = Block(x, w, {2}, mask, kEpsilon);
  at::Tensor changed = x.clone();
  changed.select(1, 4).add_(1.0);
  const at::Tensor z = Block(changed, w, {2}, mask, kEpsilon);
  EXPECT_TRUE(z.narrow(1, 0, 4).equal(y.narrow(1, 0, 4)));
  EXPECT_FALSE(z.select(1, 4).equal(y.select(1, 4)));
  EXPECT_FALSE(z.select(1, 5).equal(y.select(1, 5)));
}

TEST(Blocks, SamplesDoNotMix) {
  const at::Tensor mask = CausalMask(kPositions, at::kFloat);
  const BlockWeights w = Weights();
  const at::Tensor x = Input(), both = Block(x, w, {2}, mask, kEpsilon),
                   second = Block(x.narrow(0, 1, 1), w, {2}, mask, kEpsilon);
  EXPECT_TRUE(both.narrow(0, 1, 1).allclose(second, 1e-6, 1e-6));
}

// (x - mean) / sqrt(variance + epsilon), in double, with a head that passes it on.
TEST(Blocks, NormsTakeTheirEpsilon) {
  const at::Tensor x = Input();
  for (const double epsilon : {1e-5, 1e-3, 0.5}) {
    const at::Tensor y = Logits(
        HeadNorm(x, at::ones({kHidden}, at::kFloat), at::zeros({kHidden}, at::kFloat), epsilon),
        at::eye(kHidden, at::kFloat));
    for (int64_t row = 0; row < kSamples * kPositions; ++row) {
      const float* in = x.data_ptr<float>() + row * kHidden;
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < kHidden; ++i) mean += in[i] / kHidden;
      for (int64_t i = 0; i < kHidden; ++i) variance += (in[i] - mean) * (in[i] - mean) / kHidden;
      for (int64_t i = 0; i < kHidden; ++i) {
        EXPECT_NEAR(y.data_ptr<float>()[row * kHidden + i],
                    (in[i] - mean) / std::sqrt(variance + epsilon), 1e-5)  // fp32 of order 1
            << "epsilon " << epsilon;
      }
    }
  }
}

TEST(Blocks, UniformLogitsCostLogOfTheVocabulary) {
  const at::Tensor losses =
      TokenLosses(at::zeros({4, 10}, at::kFloat), at::zeros({2, 2}, at::kLong));
  ASSERT_EQ(losses.numel(), 4);
  EXPECT_NEAR(losses.data_ptr<float>()[3], std::log(10.0), 1e-6);
}

}  // namespace
}  // namespace isthmus::engine
