#include "worker/engine/adamw.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace isthmus::engine {
namespace {

at::Tensor Random(int64_t n, uint64_t stream, double scale) {
  const at::Tensor t = at::empty({n}, at::kFloat);
  for (int64_t i = 0; i < n; ++i)
    t.data_ptr<float>()[i] = static_cast<float>((RandomUniform(5, stream, i) - 0.5) * scale);
  return t;
}

TEST(AdamW, FollowsTheFormulaInDouble) {
  const int64_t n = 70001;  // two parallel blocks and a rest
  const AdamWOptions options{0.9, 0.95, 1e-8, 0.1};
  const at::Tensor weight = Random(n, 0, 2);
  AdamWState state = ZeroState(weight);
  std::vector<double> w(n), m(n), v(n);
  for (int64_t i = 0; i < n; ++i) w[i] = weight.data_ptr<float>()[i];
  for (int64_t step = 1; step <= 5; ++step) {
    const at::Tensor gradient = Random(n, step, 0.3);
    AdamWUpdate(options, {step, 1e-2, 0.5}, true, gradient, weight, &state);
    for (int64_t i = 0; i < n; ++i) {
      const double g = 0.5 * gradient.data_ptr<float>()[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      w[i] -= 1e-2 * 0.1 * w[i];
      w[i] -= 1e-2 * (m[i] / (1 - std::pow(0.9, step))) /
              (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8);
    }
  }
  for (int64_t i = 0; i < n; ++i)
    ASSERT_NEAR(weight.data_ptr<float>()[i], w[i], 2e-6)
        << i;  // five fp32 roundings of values up to 1
}

TEST(AdamW, NoGradientIsAZeroGradient) {
  const at::Tensor weight = Random(10, 0, 2), before = weight.clone();
  AdamWState state = ZeroState(weight);
  AdamWUpdate({}, {1, 0.1, 1}, false, at::Tensor(), weight, &state);
  EXPECT_TRUE(weight.equal(before));
  AdamWUpdate({}, {1, 0.1, 1}, true, at::Tensor(), weight, &state);
  EXPECT_NEAR(weight.data_ptr<float>()[0], before.data_ptr<float>()[0] * 0.99, 1e-6);
}

TEST(AdamW, SumOfSquares) {
  const at::Tensor g = Random(100003, 9, 1);
  double sum = 0;
  for (int64_t i = 0; i < g.numel(); ++i)
    sum += static_cast<double>(g.data_ptr<float>()[i]) * g.data_ptr<float>()[i];
  EXPECT_NEAR(SumOfSquares(g) / sum, 1, 1e-12);
  g.data_ptr<float>()[7] = NAN;
  EXPECT_TRUE(std::isnan(SumOfSquares(g)));
}

// The last step of the warm-up and the first frozen one are one formula, given the same moments.
TEST(AdamW, AFrozenStepIsOneWithItsMomentsGiven) {
  AdamWOptions options;
  const at::Tensor gradient = at::arange(1, 9, at::kFloat).mul_(1e-3);
  at::Tensor plain = at::ones({8}), frozen = at::ones({8});
  AdamWState a = ZeroState(plain), b = ZeroState(frozen);
  for (int64_t step = 1; step <= 4; ++step) {
    AdamWUpdate(options, {step, 1e-2, 1}, true, gradient, plain, &a);
    if (step < 4) {
      AdamWUpdate(options, {step, 1e-2, 1}, true, gradient, frozen, &b);
      continue;
    }
    b.exp_avg_sq.copy_(a.exp_avg_sq);
    AdamWUpdate(options, {step, 1e-2, 1, 4}, true, a.exp_avg.clone(), frozen, &b);
  }
  EXPECT_TRUE(at::equal(plain, frozen));
  EXPECT_TRUE(at::equal(a.exp_avg, b.exp_avg));
  const at::Tensor before = b.exp_avg_sq.clone();
  AdamWState c = {b.exp_avg.clone(), b.exp_avg_sq.clone()};
  at::Tensor other = frozen.clone();
  AdamWUpdate(options, {9, 1e-2, 0.5, 4}, true, a.exp_avg.clone(), frozen, &b);
  AdamWUpdateInOperators(options, {9, 1e-2, 0.5, 4}, true, a.exp_avg.clone(), other, &c);
  EXPECT_TRUE(at::equal(frozen, other)) << "the same bits on a GPU";
  EXPECT_TRUE(at::equal(b.exp_avg_sq, before));
}

// A frozen v of zero: an element whose gradients begin after the freeze.
TEST(AdamW, AFrozenStepHasABound) {
  AdamWOptions options;
  options.weight_decay = 0;
  EXPECT_NEAR(MostOfRate(options), 1.165, 0.001);
  at::Tensor w = at::zeros({2});
  AdamWState state = ZeroState(w);
  const at::Tensor moment = at::ones({2});
  AdamWUpdate(options, {1000, 1e-2, 1, 10}, false, moment, w, &state);
  EXPECT_NEAR(w.data_ptr<float>()[0], -1e-2 * MostOfRate(options), 1e-6);
}

}  // namespace
}  // namespace isthmus::engine
