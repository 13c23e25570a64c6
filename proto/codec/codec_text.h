// The text form of a CodecSpec, as users write it in a job and as explanations print it.
//
//   codec  := node [ "|" "zstd" ]
//   node   := value
//           | "topk(" RATIO { "," "global" | "token" | "values=" value } ")"
//                 largest magnitudes; values default bf16
//           | "randomk(" RATIO { "," "scaled" | "values=" value } ")"
//                 indices from a shared seed; values default bf16
//           | "lowrank(" RANK [ ", values=" value ] ")"
//                 PowerSGD, rank 1-128; values default none (fp32)
//           | "autoencoder(" CHANNELS [ ", values=" value ] ")"
//                 learned, forward alone; values default none (fp32)
//           | "kept" [ "(" value ")" ]
//                 gradients alone: values at the indices that the forward codec (topk, randomk) of
//                 the boundary kept; default none (fp32); quant: a scale per token if not said
//           | "sign" [ "(" "channel" | "token" | "group=32..256" ")" ]
//           | "cocktail(" SUBSET "," RATIO "," BITS ")"
//                 random subset, its largest, quantised
//           | "ef(" node ")" | "lep(" node ")"
//                 error feedback; lazy error propagation
//           | "predict(" node { "," "rate=0.05" | "context=1..4" | "next" } ")"
//                 difference to running means of positions and of the last `context` token ids;
//                 with next, the token after the position is the last (for gradients)
//           | "delta(" node { "," "cold=" node | "buffer=" ( "2" | "4" | "8" ) } ")"
//                 cold: the codec of a key frame, default none (fp32); buffer: the bits an element
//                 that the buffers of the samples themselves take, default bf16
//   value  := "none" | "bf16" | "fp16"
//           | "quant(" bits { "," option } ")"
//                 option: channel | token | group=32..256 | rms | stochastic | symmetric
//
// The nodes within ef, lep, predict and delta keep no state of their own; but cold= may be a
// predict. An autoencoder and a kept are within nothing.
//
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_CODEC_TEXT_H_
#define ISTHMUS_PROTO_CODEC_CODEC_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/codec.pb.h"
#include "proto/codec/codec_check.h"

namespace isthmus {

// InvalidArgument names the column and what was expected there. Nesting is limited to 4.
absl::StatusOr<CodecSpec> ParseCodec(absl::string_view text);

// The shortest text that parses to `spec`. What a KEPT has of its forward codec (codec_pair.h) is
// not in the text.
std::string FormatCodec(const CodecSpec& spec);

// 32-bit identity of a spec; travels in each frame so that both ends know they built the same
// codec.
uint32_t CodecId(const CodecSpec& spec);

// True if both ends keep state from frame to frame that must stay equal (delta, predict): a lost
// frame is an error then. What the sender keeps for itself (residuals of ef and lep, the factor of
// lowrank) does not count.
bool IsStateful(const CodecSpec& spec);

// True if its frames bring token ids along (predict, also within): the sender must know them.
bool NeedsTokenIds(const CodecSpec& spec);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_CODEC_TEXT_H_
