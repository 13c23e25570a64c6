// AQ-SGD's delta coding (compress/codecs/delta.h) on device memory. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_DELTA_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_DELTA_H_

#include <memory>

#include "compress/cuda/device_codec.h"

namespace isthmus::compress::cuda {

// Inner and cold codecs: any that MakeDeviceSampleCodec makes. `stream`: MakeDeviceEncoder's.
absl::StatusOr<std::unique_ptr<DeviceEncoder>> MakeDeviceDeltaEncoder(const CodecSpec& spec,
                                                                      const CodecOptions& options,
                                                                      void* stream);
absl::StatusOr<std::unique_ptr<DeviceDecoder>> MakeDeviceDeltaDecoder(const CodecSpec& spec,
                                                                      const CodecOptions& options,
                                                                      void* stream);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_DELTA_H_
