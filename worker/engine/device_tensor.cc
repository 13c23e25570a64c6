#include "worker/engine/device_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <memory>
#include <utility>

#include "worker/engine/runtime.h"

namespace isthmus::engine {

c10::Stream CurrentStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

Queue QueueOf(c10::Device device) {
  Queue queue;
  queue.device = device.index();  // NOLINT(bugprone-signed-char-misuse): -1 is none
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
  queue.stream = CurrentStream(device).native_handle();
#endif
  return queue;
}

void UseOwnStream(c10::Device device) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 10)
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl impl(device.type());
  impl.setDevice(device);
  if (impl.getStream(device) != impl.getDefaultStream(device)) return;
  impl.synchronizeDevice(device.index());
  impl.exchangeStream(impl.getStreamFromGlobalPool(device));
#endif
}

absl::StatusOr<std::vector<float>> DeviceTensor::ToHost() {
  return Guarded("copying to the host", [&]() -> absl::StatusOr<std::vector<float>> {
    const at::Tensor host = Use().cpu();
    const float* data = host.data_ptr<float>();
    return std::vector<float>(data, data + host.numel());
  });
}

void DeviceTensor::FilledOn(c10::Stream stream) {
  if (tensor_.device().is_cpu()) return;
  filled_.emplace(stream.device_type());
  filled_->record(stream);
}

at::Tensor DeviceTensor::UseOn(c10::Stream stream) {
  if (filled_.has_value()) filled_->block(stream);
  tensor_.record_stream(stream);
  return tensor_;
}

at::Tensor DeviceTensor::Use() {
  return tensor_.device().is_cpu() ? tensor_ : UseOn(CurrentStream(tensor_.device()));
}

at::Tensor FromWorker(worker::Tensor tensor, c10::Device device) {
  if (tensor.device != nullptr)
    return static_cast<DeviceTensor*>(tensor.device.get())->Use().to(device).detach();
  auto* data = new std::vector<float>(std::move(tensor.data));
  const TensorDims& d = tensor.dims;
  return at::from_blob(
             data->data(), {d.samples, d.positions, d.hidden}, [data](void*) { delete data; },
             at::TensorOptions().dtype(at::kFloat))
      .to(device);
}

worker::Tensor ToWorker(const at::Tensor& tensor, const TensorDims& dims, bool stays) {
  const at::Tensor typed = tensor.detach().to(at::kFloat).contiguous();
  if (!stays) {
    const at::Tensor host = typed.cpu();
    const float* data = host.data_ptr<float>();
    return worker::Tensor{dims, std::vector<float>(data, data + host.numel()), nullptr};
  }
  auto memory = std::make_shared<DeviceTensor>(typed);
  if (!typed.device().is_cpu()) memory->FilledOn(CurrentStream(typed.device()));
  return worker::Tensor{dims, {}, std::move(memory)};
}

}  // namespace isthmus::engine
