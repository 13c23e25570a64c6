#include "worker/engine/device_lane.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <optional>
#include <utility>

#include "base/status.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

using worker::Tensor;

DeviceTensor* Memory(const Tensor& tensor) {
  return static_cast<DeviceTensor*>(tensor.device.get());
}

// `stream`: none on the CPU, where tests have a lane.
class TorchLane : public worker::DeviceLane {
 public:
  TorchLane(c10::Device device, std::optional<c10::Stream> stream)
      : device_(device), stream_(stream) {}

  compress::Device device() const override {
    return device_.is_cpu() ? compress::Device::kCpu : compress::Device::kCuda;
  }
  void* stream() const override {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
    if (stream_.has_value()) return stream_->native_handle();
#endif
    return nullptr;
  }
  void Enter() override {
    if (stream_.has_value()) c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
  }

  absl::StatusOr<Tensor> New(const TensorDims& dims) override {
    return Guarded("memory of the device", [&]() -> absl::StatusOr<Tensor> {
      std::optional<c10::StreamGuard> guard;
      if (stream_.has_value()) guard.emplace(*stream_);  // whose memory it is
      Tensor tensor;
      tensor.dims = dims;
      tensor.device = std::make_shared<DeviceTensor>(
          at::empty({dims.samples, dims.positions, dims.hidden},
                    at::TensorOptions().dtype(at::kFloat).device(device_)));
      return tensor;
    });
  }
  absl::Status Written(Tensor* tensor) override {
    return Guarded("a tensor of the device", [&]() -> absl::Status {
      if (stream_.has_value()) Memory(*tensor)->FilledOn(*stream_);
      return absl::OkStatus();
    });
  }
  absl::Status Read(const Tensor& tensor) override {
    return Guarded("a tensor of the device", [&]() -> absl::Status {
      if (stream_.has_value()) Memory(tensor)->UseOn(*stream_);
      return absl::OkStatus();
    });
  }
  absl::Status Add(const Tensor& x, Tensor* sum) override {
    return Guarded("a sum on the device", [&]() -> absl::Status {
      std::optional<c10::StreamGuard> guard;
      if (stream_.has_value()) guard.emplace(*stream_);
      Memory(*sum)->Use().view({-1}).add_(Memory(x)->Use().view({-1}));
      if (stream_.has_value()) Memory(*sum)->FilledOn(*stream_);
      return absl::OkStatus();
    });
  }

 private:
  const c10::Device device_;
  const std::optional<c10::Stream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::DeviceLane>> MakeDeviceLane(const EngineOptions& options) {
  using Lane = std::unique_ptr<worker::DeviceLane>;
  return Guarded("a lane of the device", [&]() -> absl::StatusOr<Lane> {
    ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(options.device));
    if (device.is_cpu())
      return options.as_on_gpu ? std::make_unique<TorchLane>(device, std::nullopt) : Lane();
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
    return std::make_unique<TorchLane>(
        device, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
#else
    return Lane();
#endif
  });
}

}  // namespace isthmus::engine
