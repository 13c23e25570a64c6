#include "worker/engine/flat_parameters.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "worker/engine/cuda/kernels.h"

namespace isthmus::engine {
namespace {

class Flat : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto device = ParseDevice(GetParam());
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *device;
  }
  c10::Device device_{c10::DeviceType::CPU};
};

at::Tensor Random(std::vector<int64_t> shape, uint64_t stream) {
  const at::Tensor t = at::empty(shape, at::kFloat);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.data_ptr<float>()[i] = static_cast<float>(RandomUniform(7, stream, i) - 0.5);
  return t;
}

// One of each group, none of them a multiple of the alignment.
std::vector<Parameter> Some() {
  std::vector<Parameter> parameters(4);
  parameters[0].spec = {"matrix", {33, 7}, true, 1, 0};
  parameters[1].spec = {"bias", {7}, false, 0, 0};
  parameters[2].spec = {"norm.ln_1.weight", {129}, false, 0, 1};
  parameters[2].in_products = false;
  parameters[3].spec = {"embedding", {1000, 70}, true, 1, 0};
  parameters[3].tied = true;
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].value = Random(parameters[i].spec.shape, i);
  return parameters;
}

TEST(Kernels, ABuildWithoutCudaSaysSo) {
  if (HaveKernels()) GTEST_SKIP() << "built with CUDA";
  EXPECT_STREQ(AdamWKernel({}, {}, nullptr, nullptr, nullptr, nullptr, 1), "built without CUDA");
}

// On a GPU too: the kernel and LibTorch's operators against the loop of the CPU.
TEST_P(Flat, UpdatesHaveTheBitsOfTheCpusLoop) {
  std::vector<Parameter> flat = Some(), loop = Some();
  FlatParameters parameters(device_, Precision::kBf16, &flat);
  std::vector<AdamWState> states, of_operators;
  std::vector<at::Tensor> operators;
  for (const Parameter& p : loop) {
    states.push_back(ZeroState(p.value));
    operators.push_back(p.value.to(device_, at::kFloat, false, /*copy=*/true));
    of_operators.push_back(ZeroState(operators.back()));
  }
  const AdamWOptions options;
  for (int64_t step = 1; step <= 5; ++step) {
    const AdamWStep s{step, 1e-2, 0.7};
    for (size_t i = 0; i < flat.size(); ++i) {
      const at::Tensor gradient = Random(flat[i].spec.shape, 100 * step + i);
      flat[i].value.mutable_grad().copy_(gradient);
      AdamWUpdate(options, s, loop[i].spec.decay, gradient, loop[i].value, &states[i]);
      AdamWUpdateInOperators(options, s, loop[i].spec.decay, gradient.to(device_), operators[i],
                             &of_operators[i]);
    }
    parameters.Update(options, s, parameters);
    parameters.ClearGradients();
  }
  for (size_t i = 0; i < flat.size(); ++i) {
    EXPECT_TRUE(flat[i].value.detach().cpu().equal(loop[i].value)) << flat[i].spec.name;
    EXPECT_TRUE(flat[i].state.exp_avg.cpu().equal(states[i].exp_avg)) << flat[i].spec.name;
    EXPECT_TRUE(flat[i].state.exp_avg_sq.cpu().equal(states[i].exp_avg_sq)) << flat[i].spec.name;
    // LibTorch's loops for a CPU may fuse; there the stage has its own.
    if (device_.is_cpu()) continue;
    EXPECT_TRUE(operators[i].cpu().equal(loop[i].value)) << flat[i].spec.name << ", operators";
    EXPECT_EQ(flat[i].value.grad().abs().sum().item<float>(), 0);
  }
}

TEST_P(Flat, NormCountsTheTiedEmbeddingWhereItIsAsked) {
  std::vector<Parameter> flat = Some();
  FlatParameters parameters(device_, Precision::kFp32, &flat);
  double own = 0, tied = 0;
  for (size_t i = 0; i < flat.size(); ++i) {
    const at::Tensor gradient = Random(flat[i].spec.shape, 50 + i);
    flat[i].value.mutable_grad().copy_(gradient);
    (flat[i].tied ? tied : own) += SumOfSquares(gradient);
  }
  EXPECT_NEAR(parameters.SumOfSquares(false) / own, 1, 1e-5);
  EXPECT_NEAR(parameters.SumOfSquares(true) / (own + tied), 1, 1e-5);
}

TEST_P(Flat, Bf16CopiesFollowTheValuesAndTheirGradientsAddUp) {
  std::vector<Parameter> flat = Some();
  FlatParameters parameters(device_, Precision::kBf16, &flat);
  parameters.Refresh();
  const Parameter& matrix = flat[0];
  EXPECT_EQ(matrix.operand.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(matrix.operand.detach().equal(matrix.value.detach().to(at::kBFloat16)));
  EXPECT_EQ(flat[2].operand.scalar_type(), at::kFloat) << "norms are fp32";
  for (int micro = 0; micro < 2; ++micro) {
    matrix.operand.sum().backward();
    flat[2].operand.sum().backward();
    parameters.AddUp();
    EXPECT_FALSE(matrix.operand.grad().defined());
  }
  EXPECT_EQ(matrix.value.grad().sum().item<float>(), 2.0f * 33 * 7);
  EXPECT_EQ(flat[2].value.grad().sum().item<float>(), 2.0f * 129);
  parameters.Update(AdamWOptions(), {1, 1e-2, 1}, parameters);
  parameters.Refresh();
  EXPECT_TRUE(matrix.operand.detach().equal(matrix.value.detach().to(at::kBFloat16)));
}

INSTANTIATE_TEST_SUITE_P(Devices, Flat, ::testing::Values("cpu", "cuda:0"));

}  // namespace
}  // namespace isthmus::engine
