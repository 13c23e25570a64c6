#include "worker/engine/tensor_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "worker/engine/host_copy.h"

namespace isthmus::engine {
namespace {

TEST(TensorFile, ComesBackAndNothingChangesWhereATensorIsMissing) {
  const at::Tensor a = at::arange(6, at::kFloat).view({2, 3}), b = at::arange(4, at::kFloat);
  const std::string bytes = WriteTensors({{"transformer.a", a}, {"b", b.view({2, 2}).t()}}).value();
  const at::Tensor first = at::zeros({2, 3}), second = at::zeros({2, 2}), third = at::zeros({7});
  const absl::Status missing =
      ReadTensors(bytes, {{"transformer.a", first}, {"c", third}}, "weights");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(first.sum().item<float>(), 0);
  EXPECT_EQ(ReadTensors(bytes, {{"b", third}}, "weights").code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(ReadTensors(bytes, {{"transformer.a", first}, {"b", second}}, "weights").ok());
  EXPECT_TRUE(first.equal(a));
  EXPECT_TRUE(second.equal(b.view({2, 2}).t()));
}

TEST(HostCopy, OfAHostTensorIsThere) {
  const at::Tensor t = at::arange(6, at::kFloat).view({2, 3}).t();
  HostCopy copy(t);
  EXPECT_TRUE(copy.Wait().equal(t));
  EXPECT_TRUE(copy.Wait().is_contiguous());
}

}  // namespace
}  // namespace isthmus::engine
