// Which elements of its samples a payload of topk or randomk holds, read from its bytes: so a codec
// on a device answers indices(), where somebody asks; a host's codec has them at hand.
//
// Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_CODECS_SENT_INDICES_H_
#define ISTHMUS_COMPRESS_CODECS_SENT_INDICES_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "compress/codec.h"

namespace isthmus::compress {

// What a host's Encoder::indices has after a frame of `samples`. `payload`: what an encoder made or
// a decoder took, without zstd. Empty: another codec, or bytes that no encoder makes.
std::vector<uint32_t> SentIndices(const CodecSpec& spec, const CodecOptions& options,
                                  absl::string_view payload, int64_t samples);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_SENT_INDICES_H_
