// `| zstd`: the payload of any codec, entropy coded where that pays. Five bytes in front: flag (0
// as it is, 1 zstd) and raw size (uint32).
//
// Where it has not paid for 4 frames in a row, only every 16th frame is tried: packed codes of
// noise do not shrink, and trying costs time. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_ZSTD_CODEC_H_
#define ISTHMUS_COMPRESS_CODECS_ZSTD_CODEC_H_

#include <memory>
#include <string>

#include "compress/codec.h"

namespace isthmus::compress {

std::unique_ptr<Encoder> MakeZstdEncoder(std::unique_ptr<Encoder> inner);

// `spec` is the codec with its zstd flag: a bound of the raw size.
std::unique_ptr<Decoder> MakeZstdDecoder(std::unique_ptr<Decoder> inner, const CodecSpec& spec);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_ZSTD_CODEC_H_
