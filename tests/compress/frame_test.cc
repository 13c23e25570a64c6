#include "compress/frame.h"

#include "gtest/gtest.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

TEST(Frame, RefusesOtherDimsThanTheBoundarys) {
  CodecOptions options = Pair::Options(4, 8);
  options.max_samples = 2;
  float x[64] = {0};
  EXPECT_TRUE(CheckTensor(x, Device::kCpu, {2, 4, 8}, options).ok());
  EXPECT_TRUE(CheckTensor(nullptr, Device::kCpu, {0, 4, 8}, options).ok());
  for (TensorDims dims :
       {TensorDims{1, 8, 4}, TensorDims{1, 4, 9}, TensorDims{3, 4, 8}, TensorDims{-1, 4, 8}}) {
    EXPECT_EQ(CheckTensor(x, Device::kCpu, dims, options).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CheckTensor(nullptr, Device::kCpu, {1, 4, 8}, options).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckTensor(x, Device::kCuda, {1, 4, 8}, options).code(),
            absl::StatusCode::kInvalidArgument);
  options.device = Device::kCuda;
  EXPECT_TRUE(CheckTensor(x, Device::kCuda, {1, 4, 8}, options).ok());
  EXPECT_EQ(CheckTensor(x, Device::kCpu, {1, 4, 8}, options).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Frame, IdsAndVersions) {
  EXPECT_TRUE(CheckIds({3, 1, 2}, 3).ok());
  EXPECT_FALSE(CheckIds({3, 1, 3}, 3).ok());
  EXPECT_FALSE(CheckIds({3}, 2).ok());
  EXPECT_TRUE(CheckVersion(5, 4).ok());
  EXPECT_EQ(CheckVersion(4, 4).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckVersion(6, 4).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace isthmus::compress
