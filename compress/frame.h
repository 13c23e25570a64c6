// What every frame codec checks first, and the statistics all of them keep. Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_FRAME_H_
#define ISTHMUS_COMPRESS_FRAME_H_

#include "absl/status/status.h"
#include "compress/codec.h"

namespace isthmus::compress {

// The boundary's dims, a sample count within the limit, a pointer, memory that this build can
// reach.
absl::Status CheckTensor(const void* data, Device device, const TensorDims& dims,
                         const CodecOptions& options);

// One id a sample, none twice.
absl::Status CheckIds(absl::Span<const uint32_t> ids, int64_t samples);

// One token id a position.
absl::Status CheckTokens(absl::Span<const uint32_t> tokens, const TensorDims& dims);

// DataLoss unless `version` is the next one after `last`.
absl::Status CheckVersion(uint64_t version, uint64_t last);

inline void CountFrame(const TensorDims& dims, size_t payload_bytes, CodecStats* stats) {
  ++stats->frames;
  stats->raw_bytes += 4 * dims.elements();
  stats->payload_bytes += static_cast<int64_t>(payload_bytes);
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_FRAME_H_
