#include "proto/codec/codec_pair.h"

#include "absl/strings/str_cat.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"

namespace isthmus {

bool GroupsTake(const CodecSpec& spec) {
  return !IsStateful(spec) && !NeedsTokenIds(spec) && !NeedsIndices(spec) &&
         spec.kind() != CodecSpec::AUTOENCODER && !(ByMatrix(spec) && spec.zstd());
}

bool ByMatrix(const CodecSpec& spec) {
  const bool wrapped = spec.kind() == CodecSpec::FEEDBACK || spec.kind() == CodecSpec::LAZY;
  return (wrapped ? spec.inner() : spec).kind() == CodecSpec::LOW_RANK;
}

absl::Status CheckEpilogue(const CodecSpec& backward) {
  if (!IsStateful(backward) && !NeedsIndices(backward) && !NeedsTokenIds(backward))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(FormatCodec(backward), " can't code the gradients of an epilogue alone: ",
                   NeedsIndices(backward)
                       ? "it sends each at the indices of its activation"
                       : "it learns from every gradient, and the others would go past it as fp32"));
}

bool KeepsIndices(const CodecSpec& forward) {
  return forward.kind() == CodecSpec::TOP_K ||
         (forward.kind() == CodecSpec::RANDOM_K && ValuesOf(forward).kind() != CodecSpec::TOP_K);
}

std::string IndicesNeeded() { return "topk(RATIO), or randomk(RATIO) of other values than topk"; }

absl::StatusOr<CodecSpec> BindBackward(const CodecSpec& forward, const CodecSpec& backward) {
  if (!NeedsIndices(backward)) return backward;
  if (!KeepsIndices(forward)) {
    return absl::InvalidArgumentError(absl::StrCat(
        FormatCodec(backward), " sends gradients at the indices that the forward codec kept, and ",
        FormatCodec(forward), " keeps none: the forward codec must be ", IndicesNeeded(),
        ", or the backward codec another one"));
  }
  CodecSpec bound = backward;
  bound.set_ratio(forward.ratio());
  bound.set_global(forward.global() || forward.kind() == CodecSpec::RANDOM_K);
  bound.set_scaled(forward.scaled());
  return bound;
}

absl::Status CheckBound(const CodecSpec& forward, const CodecSpec& backward) {
  const absl::StatusOr<CodecSpec> bound = BindBackward(forward, backward);
  if (!bound.ok()) return bound.status();
  if (bound->ratio() == backward.ratio() && bound->global() == backward.global() &&
      bound->scaled() == backward.scaled())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(FormatCodec(backward), " is not bound to the forward codec ",
                   FormatCodec(forward), " (ratio ", backward.ratio(), ")"));
}

}  // namespace isthmus
