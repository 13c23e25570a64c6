// The delta buffers of one end of one boundary, where that end computes on a device: the samples
// and their order of compress/buffers/message_store.h, the tiers of compress/buffers/device_tiers.h
// over CUDA.
//
// As in CodecOptions: device_buffer_bytes of the memory cap lie in device memory, reserved at once,
// the rest of it in pinned host memory, the disk cap in a spill file. The capacity in samples is
// that of a host's store under the same caps. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_STORE_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "compress/buffers/device_tiers.h"
#include "compress/buffers/message_store.h"
#include "compress/codec.h"
#include "compress/cuda/device_body.h"
#include "compress/cuda/device_memory.h"

namespace isthmus::compress::cuda {

// How the buffer of a sample lies in the store: as bf16, or as a body of quant(bits): the
// counterpart of compress/buffers/buffer_format.h.
class DeviceBuffers {
 public:
  // `bits`: CodecSpec.buffer_bits; 0: bf16.
  static absl::StatusOr<DeviceBuffers> Make(int bits, const SampleShape& shape,
                                            const CodecOptions& options);

  int64_t words() const { return words_; }  // of the host's format
  int64_t device_bytes() const;
  std::vector<DeviceTiers::Piece> pieces() const;

  // A sample of a frame and its buffer in the store.
  struct Stored {
    size_t sample = 0;
    uint16_t* at = nullptr;
  };
  // Room for what Open gives of so many samples.
  absl::Status Reserve(size_t samples);
  // positions x hidden of bf16, to be changed.
  uint16_t* Opened(const Stored& stored) const;
  // Queue that what is stored gets there, and back.
  absl::Status Open(absl::Span<const Stored> buffers, Queue* queue);
  absl::Status Close(absl::Span<const Stored> buffers, Queue* queue);

 private:
  DeviceBuffers(const SampleShape& shape, int64_t words, std::unique_ptr<DeviceSampleCodec> quant)
      : elements_(shape.elements()), words_(words), quant_(std::move(quant)) {}

  int64_t elements_, words_;
  std::unique_ptr<DeviceSampleCodec> quant_;  // null: bf16
  DeviceMemory opened_;                       // a flag that nobody reads, then samples
};

// `queue`: on which the buffers are computed with; it outlives the store.
absl::StatusOr<std::unique_ptr<MessageStore>> MakeDeviceStore(const DeviceBuffers& buffers,
                                                              const CodecOptions& options,
                                                              Queue* queue);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_STORE_H_
