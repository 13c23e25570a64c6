// Passes as device graphs: where there is no GPU, none; on one, what runs without them is computed,
// with several micro-batches under way, and a step that is given up.
#include "worker/engine/recorded_passes.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tests/engine/pipeline.h"
#include "worker/engine/device_graph.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

TEST(RecordedPasses, NoneOnACpu) {
  RecordedPasses passes;
  Pass pass;
  pass.in = {2, 3, 4};
  for (int i = 0; i < 2 * RecordedPasses::kWarmUps; ++i)
    EXPECT_EQ(passes.Take(c10::Device(c10::DeviceType::CPU), pass), nullptr);
  EXPECT_EQ(DeviceGraph::Make(c10::Device(c10::DeviceType::CPU)), nullptr);
}

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto device = ParseDevice("cuda:0");
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *device;
    UseOwnStream(device_);
    if (DeviceGraph::Make(device_) == nullptr) GTEST_SKIP() << "built without CUDA";
  }
  c10::Device device_{c10::DeviceType::CPU};
};

TEST_F(OnGpu, AGraphIsReplayedOnTheMemoryItWasRecordedOn) {
  const at::Tensor x = at::full({4}, 2.0, at::TensorOptions().device(device_));
  at::Tensor y;
  const auto graph = DeviceGraph::Make(device_);
  graph->Record([&] { y = x.mul(3); }, nullptr);
  for (double value : {2.0, 5.0}) {
    x.fill_(value);
    graph->Replay();
    EXPECT_EQ(y.cpu()[3].item<double>(), 3 * value);
  }
}

TEST_F(OnGpu, OneForEachMicroBatchUnderWay) {
  RecordedPasses passes;
  Pass pass;
  pass.in = {2, 3, 4};
  for (int i = 0; i < RecordedPasses::kWarmUps; ++i) EXPECT_EQ(passes.Take(device_, pass), nullptr);
  RecordedPass* const first = passes.Take(device_, pass);
  RecordedPass* const second = passes.Take(device_, pass);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(first, second);
  first->Release();
  EXPECT_EQ(passes.Take(device_, pass), first);
  pass.in.samples = 1;
  EXPECT_NE(passes.Take(device_, pass), second) << "of another shape";
  passes.Disable();
  EXPECT_EQ(passes.Take(device_, pass), nullptr);
}

}  // namespace
}  // namespace isthmus::engine
