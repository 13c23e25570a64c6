// Linked in place of the CUDA kernels and codecs where there is no CUDA.
#include "base/status.h"
#include "compress/cuda/device_codec.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress::cuda {
namespace {

absl::Status Missing(const CodecSpec& spec) {
  return absl::UnimplementedError(
      absl::StrCat("codec '", FormatCodec(spec),
                   "' on device tensors: built without CUDA; configure with -DISTHMUS_CUDA=ON "
                   "where nvcc is, or copy the tensor to the host"));
}

}  // namespace

bool BuiltWithCuda() { return false; }

absl::StatusOr<int64_t> FreeDeviceBytes() { return absl::UnimplementedError("built without CUDA"); }

absl::Status DeviceEncoder::Encode(const TensorView&, const FrameContext&, std::string*) {
  return absl::UnimplementedError("built without CUDA");
}

absl::StatusOr<std::unique_ptr<DeviceEncoder>> MakeDeviceEncoder(const CodecSpec& spec,
                                                                 const CodecOptions&, void*) {
  return Missing(spec);
}

absl::StatusOr<std::unique_ptr<DeviceDecoder>> MakeDeviceDecoder(const CodecSpec& spec,
                                                                 const CodecOptions&, void*) {
  return Missing(spec);
}

}  // namespace isthmus::compress::cuda
