// What the two codecs of a boundary have to do with each other: a `kept` sends gradients at the
// indices that the forward codec kept, so it needs one that keeps indices, and takes over how many
// there are. Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_CODEC_PAIR_H_
#define ISTHMUS_PROTO_CODEC_CODEC_PAIR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/codec.pb.h"

namespace isthmus {

// The forward pass must remember the indices of its elements until their gradients come.
inline bool NeedsIndices(const CodecSpec& backward) { return backward.kind() == CodecSpec::KEPT; }

// What several ranks reduce may be encoded so: every decoder follows without state of its own.
bool GroupsTake(const CodecSpec& spec);

// May the gradients of a step's epilogue alone go by `backward`, and the others as fp32?
// InvalidArgument: a codec that must see every gradient (predict, delta), or that is bound to every
// activation (kept).
absl::Status CheckEpilogue(const CodecSpec& backward);

// True for lowrank, and for ef and lep of one: a codec of a matrix's rows and columns. Gradients of
// a stage go by it tensor by tensor (compress/codecs/by_matrix.h).
bool ByMatrix(const CodecSpec& spec);

// True for topk and randomk: each element of a sample is sent or is zero, and both ends know which.
// A randomk of a topk (values=topk, cocktail) is none of them.
bool KeepsIndices(const CodecSpec& forward);

// What a `kept` needs of the forward codec, in words, for the end of an error.
std::string IndicesNeeded();

// `backward` as the plan has it: a KEPT with the ratio, global and scaled of `forward`, another one
// as it is. InvalidArgument: a `kept` whose forward codec keeps no indices.
absl::StatusOr<CodecSpec> BindBackward(const CodecSpec& forward, const CodecSpec& backward);

// The same of a pair that a plan has: InvalidArgument where `backward` is not bound to `forward`.
absl::Status CheckBound(const CodecSpec& forward, const CodecSpec& backward);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_CODEC_PAIR_H_
