#include "worker/engine/host_copy.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

namespace isthmus::engine {
namespace {

TEST(HostCopy, OfAHostTensorIsThere) {
  const at::Tensor t = at::arange(6, at::kFloat).view({2, 3}).t();
  HostCopy copy(t);
  EXPECT_TRUE(copy.Wait().equal(t));
  EXPECT_TRUE(copy.Wait().is_contiguous());
}

TEST(HostCopy, RunsGoOutAndIn) {
  const at::Tensor run = at::arange(100, at::kFloat), other = at::zeros({100}, at::kFloat);
  std::vector<float> out(10);
  CopyOut(run.narrow(0, 7, 10), out.data());
  EXPECT_EQ(out.front(), 7);
  EXPECT_EQ(out.back(), 16);
  CopyIn(out.data(), other.narrow(0, 7, 10));
  EXPECT_TRUE(other.narrow(0, 7, 10).equal(run.narrow(0, 7, 10)));
  EXPECT_EQ(other[6].item<float>() + other[17].item<float>(), 0);
}

}  // namespace
}  // namespace isthmus::engine
