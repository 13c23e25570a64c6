#include "worker/engine/device_tensor.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "worker/engine/device_lane.h"
#include "worker/engine/device_memory.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

class DeviceTensors : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto device = ParseDevice(GetParam());
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *device;
    lane_ = MakeDeviceLane(EngineOptions{GetParam(), 1, true}).value();
    lane_->Enter();
  }
  c10::Device device_{c10::DeviceType::CPU};
  std::unique_ptr<worker::DeviceLane> lane_;
};

TEST_P(DeviceTensors, PassFromAStageToALaneAndToTheHost) {
  const at::Tensor t = at::arange(24, at::kFloat).view({2, 3, 4}).to(device_);
  worker::Tensor tensor = ToWorker(t.to(at::kBFloat16), {2, 3, 4}, /*stays=*/true);
  ASSERT_NE(tensor.device, nullptr);
  EXPECT_TRUE(tensor.data.empty());
  ASSERT_TRUE(lane_->Read(tensor).ok());
  const std::vector<float> host = tensor.device->ToHost().value();
  for (int i = 0; i < 24; ++i) EXPECT_EQ(host[i], i);
  EXPECT_TRUE(FromWorker(std::move(tensor), device_).equal(t));
  EXPECT_EQ(ToWorker(t, {2, 3, 4}, /*stays=*/false).data, host);
}

TEST_P(DeviceTensors, MemoryOfALaneReachesAStage) {
  worker::Tensor tensor = lane_->New({1, 2, 8}).value();
  EXPECT_EQ(tensor.dims.elements(), 16);
  ASSERT_NE(tensor.device->data(), nullptr);
  ASSERT_TRUE(lane_->Written(&tensor).ok());
  const at::Tensor got = FromWorker(std::move(tensor), device_);
  EXPECT_EQ(got.device().type(), device_.type());
  EXPECT_EQ(got.sizes(), at::IntArrayRef({1, 2, 8}));
}

TEST_P(DeviceTensors, WhatIsInUseStaysWhereUnusedMemoryIsGivenBack) {
  const at::Tensor used = at::arange(24, at::kFloat).to(device_);
  at::arange(1 << 20, at::kFloat).to(device_);  // unused from here on
  ReleaseDeviceMemory();
  EXPECT_EQ(used.cpu().sum().item<float>(), 276);
  EXPECT_TRUE(lane_->New({1, 2, 8}).ok());
}

TEST(DeviceLane, ACpuHasNone) { EXPECT_EQ(MakeDeviceLane(EngineOptions()).value(), nullptr); }

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTensors, ::testing::Values("cpu", "cuda:0"));

}  // namespace
}  // namespace isthmus::engine
