// What a CodecSpec may be, wherever it came from: text or the wire. Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_CODEC_CHECK_H_
#define ISTHMUS_PROTO_CODEC_CODEC_CHECK_H_

#include "absl/status/status.h"
#include "proto/codec.pb.h"

namespace isthmus {

inline constexpr int kMaxCodecNesting = 4;
inline constexpr int kMaxCodecChannels = 65536;
inline constexpr char kAutoencoderIsOutermost[] =
    "autoencoder: it is part of the model and can't be inside of another codec; what crosses the "
    "wire is coded by values=, as in autoencoder(32, values=quant(8))";

inline constexpr char kKeptIsOutermost[] =
    "kept: it is the backward codec of a boundary, not a part of another one; its values are coded "
    "by the codec in it, as in kept(quant(8))";

// Of the delta buffers, where they are not bf16.
inline bool IsBufferBits(int bits) { return bits == 2 || bits == 4 || bits == 8; }

// Checks ranges (bits 1-8, group 32-256) and nesting; ParseCodec's results always pass.
absl::Status ValidateCodec(const CodecSpec& spec);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_CODEC_CHECK_H_
