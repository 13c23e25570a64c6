// How many payload bytes a codec makes of a tensor: known before encoding, used by the planner and
// checked against the encoders. Thread: pure functions.
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

// How many of n elements a share of `ratio` is: rounded up, at least 1 of a non-empty n.
int64_t KeptOf(double ratio, int64_t n);

// Elements that top-k keeps of one sample.
int64_t TopKKept(const CodecSpec& spec, int64_t positions, int64_t hidden);

// Bytes of a set of `kept` indices under `n`: Elias-Fano or a bitmap, whichever is less
// (compress/index_set.h).
int64_t IndexSetBytes(int64_t n, int64_t kept);

// The codec of the values of a TOP_K, RANDOM_K or LOW_RANK: `inner`, or the default.
CodecSpec ValuesOf(const CodecSpec& spec);

// What a COCKTAIL is made of: RANDOM_K of TOP_K of QUANT.
CodecSpec ExpandCocktail(const CodecSpec& spec);

// Exact payload bytes without zstd; token ids of `predict` counted with 2 bytes (4 from a
// vocabulary of 65536 on). `warm`: every sample of a delta codec has a buffer (else every sample is
// a key frame).
int64_t EncodedBytes(const CodecSpec& spec, const TensorDims& dims, bool warm);

// Never exceeded by an encoder, with zstd, in any state.
int64_t MaxEncodedBytes(const CodecSpec& spec, const TensorDims& dims);

// Bytes of delta buffers for `samples` samples at one end of one boundary (bf16); 0 for stateless
// codecs.
int64_t BufferBytes(const CodecSpec& spec, int64_t samples, int64_t positions, int64_t hidden);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_SIZE_H_
