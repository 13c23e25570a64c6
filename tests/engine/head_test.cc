#include "worker/engine/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "worker/engine/blocks.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr int64_t kRows = 1100, kHidden = 24;  // three rounds of the operators' rows
constexpr double kScale = 0.25;

at::Tensor Random(std::vector<int64_t> shape, uint64_t stream, double scale) {
  const at::Tensor t = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.data_ptr<float>()[i] = static_cast<float>((RandomUniform(6, stream, i) - 0.5) * scale);
  return t;
}

// ||a - b|| / ||b||
double Difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble).cpu(), y = b.to(at::kDouble).cpu();
  return at::sub(x, y).norm().item<double>() / y.norm().item<double>();
}

struct Case {
  const char* device;
  at::ScalarType type;
  int64_t vocabulary;
  int64_t logit_bytes;
  double tolerance;
};

class Head : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto device = ParseDevice(GetParam().device);
    if (!device.ok()) GTEST_SKIP() << device.status();
    UseArithmetic(Precision::kFp32, false);
    device_ = *device;
    const int64_t vocabulary = GetParam().vocabulary;
    x_ = Random({kRows, kHidden}, 1, 4);
    embedding_ = Random({vocabulary, kHidden}, 2, 4);
    targets_ = at::empty({kRows}, at::kLong);
    for (int64_t i = 0; i < kRows; ++i)
      targets_.data_ptr<int64_t>()[i] = RandomBelow(6, 3, i, vocabulary);
  }
  HeadResult Run(const HeadOptions& options, at::Tensor* sum) const {
    const auto on = [&](const at::Tensor& t) { return t.to(device_).to(GetParam().type); };
    return HeadLoss(on(x_), on(embedding_), targets_.to(device_), options, *sum);
  }
  c10::Device device_{c10::DeviceType::CPU};
  at::Tensor x_, embedding_, targets_;
};

TEST_P(Head, IsTheGraphsInFp64) {
  const at::Tensor x = x_.to(at::kDouble).requires_grad_(true),
                   embedding = embedding_.to(at::kDouble).requires_grad_(true);
  const at::Tensor losses = TokenLosses(Logits(x, embedding), targets_);
  losses.sum().mul(kScale).backward();

  HeadOptions options;
  options.scale = kScale;
  options.logit_bytes = GetParam().logit_bytes;
  at::Tensor sum = at::zeros(embedding_.sizes(), at::kFloat).fill_(0.5).to(device_);
  const HeadResult result = Run(options, &sum);
  const double expected = losses.sum().item<double>();
  EXPECT_NEAR(result.LossSum() / expected, 1, GetParam().tolerance);
  EXPECT_LT(Difference(result.gradient, x.grad()), GetParam().tolerance);
  EXPECT_LT(Difference(at::sub(sum, 0.5), embedding.grad()), GetParam().tolerance)
      << "adds to what is there";
  EXPECT_EQ(result.gradient.scalar_type(), GetParam().type);

  options.gradients = false;
  at::Tensor none;
  const HeadResult loss = Run(options, &none);
  EXPECT_EQ(loss.LossSum(), result.LossSum());
  EXPECT_FALSE(loss.gradient.defined());
}

TEST_P(Head, WhatIsNotFiniteShowsInTheLoss) {
  HeadOptions options;
  options.gradients = false;
  at::Tensor none;
  x_.data_ptr<float>()[5 * kHidden] = NAN;
  EXPECT_FALSE(std::isfinite(Run(options, &none).LossSum()));
  x_.data_ptr<float>()[5 * kHidden] = INFINITY;
  EXPECT_FALSE(std::isfinite(Run(options, &none).LossSum()));
}

constexpr int64_t kMegabyte = 1 << 20;
// bf16 rounds operands to 2^-9, which the tolerance allows for; sums are fp32.
INSTANTIATE_TEST_SUITE_P(Cases, Head,
                         ::testing::Values(Case{"cpu", at::kFloat, 1000, kMegabyte, 1e-5},
                                           Case{"cpu", at::kFloat, 1000, kLogitBytes, 1e-5},
                                           Case{"cpu", at::kBFloat16, 1000, kMegabyte, 2e-2},
                                           Case{"cuda:0", at::kFloat, 1000, kMegabyte, 1e-5},
                                           Case{"cuda:0", at::kFloat, 997, kLogitBytes, 1e-5},
                                           Case{"cuda:0", at::kBFloat16, 1000, kMegabyte, 2e-2},
                                           Case{"cuda:0", at::kBFloat16, 997, kLogitBytes, 2e-2},
                                           Case{"cuda:0", at::kBFloat16, 50304, kLogitBytes,
                                                2e-2}));

}  // namespace
}  // namespace isthmus::engine
