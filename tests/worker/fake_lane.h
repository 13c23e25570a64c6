// A device's memory and lanes, in host memory. Thread: as DeviceLane.
#ifndef ISTHMUS_TESTS_WORKER_FAKE_LANE_H_
#define ISTHMUS_TESTS_WORKER_FAKE_LANE_H_

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "worker/device_lane.h"

namespace isthmus::worker {

// What a GPU has, in host memory.
class FakeMemory : public DeviceMemory {
 public:
  explicit FakeMemory(std::vector<float> values) : values_(std::move(values)) {}
  void* data() override { return values_.data(); }
  absl::StatusOr<std::vector<float>> ToHost() override { return values_; }

 private:
  std::vector<float> values_;
};

struct LaneCalls {
  std::atomic<int> made{0}, written{0}, read{0};
};

class FakeLane : public DeviceLane {
 public:
  explicit FakeLane(LaneCalls* calls, compress::Device device = compress::Device::kCpu)
      : calls_(calls), device_(device) {}
  compress::Device device() const override { return device_; }
  void* stream() const override { return nullptr; }
  void Enter() override {}
  absl::StatusOr<Tensor> New(const TensorDims& dims) override {
    ++calls_->made;
    return Tensor{dims, {}, std::make_shared<FakeMemory>(std::vector<float>(dims.elements()))};
  }
  absl::Status Written(Tensor*) override {
    ++calls_->written;
    return absl::OkStatus();
  }
  absl::Status Read(const Tensor&) override {
    ++calls_->read;
    return absl::OkStatus();
  }
  absl::Status Add(const Tensor& x, Tensor* sum) override {
    const auto* from = static_cast<const float*>(x.device->data());
    auto* to = static_cast<float*>(sum->device->data());
    for (int64_t i = 0; i < x.dims.elements(); ++i) to[i] += from[i];
    return absl::OkStatus();
  }

 private:
  LaneCalls* const calls_;
  const compress::Device device_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_FAKE_LANE_H_
