// Codecs of tensors in device memory: payloads and delta buffers are those of the CPU's codecs, bit
// for bit, so either end of a link may be a device or a host.
//
//   encode:  device tensor -> kernels -> packed bytes -> pinned host memory (one wait)
//   decode:  payload -> pinned host memory -> device -> kernels (queued, not waited for)
//
// Only packed bytes cross the bus. A build without CUDA has a stub in place of this file's
// functions: they return Unimplemented. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_CODEC_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_CODEC_H_

#include <cstdint>
#include <memory>

#include "compress/codec.h"

namespace isthmus::compress::cuda {

// False where the stub is linked.
bool BuiltWithCuda();

// Bytes that the calling thread's device has free, as the driver counts: whatever any process has.
absl::StatusOr<int64_t> FreeDeviceBytes();

class DeviceEncoder : public Encoder {
 public:
  // As Encode, without the copy into a string: the payload lies in pinned memory of the encoder,
  // until the next call.
  virtual absl::StatusOr<absl::string_view> EncodePinned(const TensorView& in,
                                                         const FrameContext& context) = 0;
  absl::Status Encode(const TensorView& in, const FrameContext& context,
                      std::string* payload) override;
};

class DeviceDecoder : public Decoder {
 public:
  // Pinned memory for a payload of up to `bytes`, for Decode to take without a copy. Valid until
  // the next call.
  virtual absl::StatusOr<char*> PinnedPayload(int64_t bytes) = 0;
};

// `stream`: a cudaStream_t that the tensors are computed and used on; null: a stream of its own,
// which waits for the legacy default stream and which that one waits for. Decode returns once its
// work is queued there, unless a frame has key frames.
// `| zstd` is MakeEncoder's and MakeDecoder's affair: here it is Unimplemented.
// Unimplemented also names what has no kernel (README.md). FailedPrecondition: no device.
absl::StatusOr<std::unique_ptr<DeviceEncoder>> MakeDeviceEncoder(const CodecSpec& spec,
                                                                 const CodecOptions& options,
                                                                 void* stream = nullptr);
absl::StatusOr<std::unique_ptr<DeviceDecoder>> MakeDeviceDecoder(const CodecSpec& spec,
                                                                 const CodecOptions& options,
                                                                 void* stream = nullptr);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_CODEC_H_
