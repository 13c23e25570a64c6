// How many payload bytes a codec makes of a tensor: known before encoding, used by the planner and checked against the encoders.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_SIZE_H_
#define ISTHMUS_PROTO_CODEC_SIZE_H_

#include <cstdint>

#include "proto/codec.pb.h"

namespace isthmus {

struct TensorDims {
  int64_t samples = 0;
  int64_t positions = 0;
  int64_t hidden = 0;
  int64_t elements() const { return samples * positions * hidden; }
};

// Exact payload bytes without zstd. `warm`: every sample of a delta codec has a buffer (else every sample is a key frame).
int64_t EncodedBytes(const CodecSpec& spec, const TensorDims& dims, bool warm);

// Never exceeded by an encoder, with zstd, in any state.
int64_t MaxEncodedBytes(const CodecSpec& spec, const TensorDims& dims);

// Bytes of delta buffers for `samples` samples at one end of one boundary (bf16); 0 for stateless codecs.
int64_t BufferBytes(const CodecSpec& spec, int64_t samples, int64_t positions, int64_t hidden);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_SIZE_H_
