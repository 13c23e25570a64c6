// The text form of a CodecSpec, as users write it in a job and as explanations print it.
//
//   codec  := node [ "|" "zstd" ]
//   node   := "none" | "bf16" | "fp16"
//           | "quant(" bits { "," option } ")"       option: channel | token | group=32..256 | rms | stochastic | symmetric
//           | "delta(" node [ ", cold=" node ] ")"   cold: the codec of a key frame, default none (fp32)
//
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_TEXT_H_
#define ISTHMUS_PROTO_CODEC_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/codec.pb.h"

namespace isthmus {

// InvalidArgument names the column and what was expected there. Nesting is limited to 4.
absl::StatusOr<CodecSpec> ParseCodec(absl::string_view text);

// The shortest text that parses to `spec`.
std::string FormatCodec(const CodecSpec& spec);

// Checks ranges (bits 1-8, group 32-256) and nesting; ParseCodec's results always pass.
absl::Status ValidateCodec(const CodecSpec& spec);

// 32-bit identity of a spec; travels in each frame so that both ends know they built the same codec.
uint32_t CodecId(const CodecSpec& spec);

// True if the codec keeps state from frame to frame (delta buffers, residuals).
bool IsStateful(const CodecSpec& spec);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_TEXT_H_
