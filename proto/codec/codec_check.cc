#include "proto/codec/codec_check.h"

#include "absl/strings/str_cat.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

bool InUnit(double x) { return x > 0 && x <= 1; }

bool KeepsState(const CodecSpec& spec) {
  return IsStateful(spec) || spec.kind() == CodecSpec::FEEDBACK || spec.kind() == CodecSpec::LAZY;
}

absl::Status Validate(const CodecSpec& spec, int depth);

// Values are a short list, not samples: what may code them.
absl::Status ValidateValues(const CodecSpec& spec, int depth) {
  const CodecSpec values = ValuesOf(spec);
  const bool plain = values.kind() == CodecSpec::NONE || values.kind() == CodecSpec::BF16 ||
                     values.kind() == CodecSpec::FP16;
  const bool quant = values.kind() == CodecSpec::QUANT &&
                     (values.scale() != CodecSpec::PER_CHANNEL ||
                      spec.kind() == CodecSpec::LOW_RANK || spec.kind() == CodecSpec::AUTOENCODER);
  const bool top = spec.kind() == CodecSpec::RANDOM_K && values.kind() == CodecSpec::TOP_K;
  if (!plain && !quant && !top) {
    return absl::InvalidArgumentError(
        "values: none, bf16, fp16, or quant with a scale per token or group (randomk also takes "
        "topk)");
  }
  return Validate(values, depth + 1);
}

absl::Status ValidatePredict(const CodecSpec& spec) {
  if (spec.kind() != CodecSpec::PREDICT) return absl::OkStatus();
  if (!(spec.rate() >= 0 && spec.rate() <= 1))
    return absl::InvalidArgumentError("predict: the rate is over 0 and at most 1");
  if (spec.context() < 0 || spec.context() > kMaxPredictContext) {
    return absl::InvalidArgumentError(
        absl::StrCat("predict: context ", spec.context(), " not in 1..", kMaxPredictContext));
  }
  return absl::OkStatus();
}

absl::Status ValidateAutoencoder(const CodecSpec& spec, int depth) {
  if (depth > 0) return absl::InvalidArgumentError(kAutoencoderIsOutermost);
  if (spec.channels() < 1 || spec.channels() > kMaxCodecChannels) {
    return absl::InvalidArgumentError(
        absl::StrCat("autoencoder: channels ", spec.channels(), " not in 1..", kMaxCodecChannels));
  }
  return ValidateValues(spec, depth);
}

// Bound to a forward codec (codec_pair.h) or not yet.
absl::Status ValidateKept(const CodecSpec& spec, int depth) {
  if (depth > 0) return absl::InvalidArgumentError(kKeptIsOutermost);
  if (spec.ratio() != 0 && !InUnit(spec.ratio())) {
    return absl::InvalidArgumentError(absl::StrCat("kept: the forward codec's ratio ", spec.ratio(),
                                                   " is not over 0 and at most "
                                                   "1"));
  }
  return ValidateValues(spec, depth);
}

absl::Status ValidateWrapper(const CodecSpec& spec, int depth) {
  const char* name = spec.kind() == CodecSpec::DELTA     ? "delta"
                     : spec.kind() == CodecSpec::PREDICT ? "predict"
                                                         : "ef, lep";
  if (!spec.has_inner()) return absl::InvalidArgumentError(absl::StrCat(name, ": no inner codec"));
  if (absl::Status predict = ValidatePredict(spec); !predict.ok()) return predict;
  if (spec.buffer_bits() != 0 &&
      (spec.kind() != CodecSpec::DELTA || !IsBufferBits(spec.buffer_bits()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": buffer ", spec.buffer_bits(), " not 2, 4 or 8, of a delta"));
  }
  const bool cold_predict = spec.cold().kind() == CodecSpec::PREDICT;
  if (KeepsState(spec.inner()) || (KeepsState(spec.cold()) && !cold_predict)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the inner and cold codecs must be stateless"));
  }
  absl::Status inner = Validate(spec.inner(), depth + 1);
  if (!inner.ok()) return inner;
  if (spec.has_cold()) return Validate(spec.cold(), depth + 1);
  return absl::OkStatus();
}

absl::Status Validate(const CodecSpec& spec, int depth) {
  if (depth >= kMaxCodecNesting)
    return absl::InvalidArgumentError("codec nested too deeply (limit 4)");
  switch (spec.kind()) {
    case CodecSpec::NONE:
    case CodecSpec::BF16:
    case CodecSpec::FP16:
      break;
    case CodecSpec::QUANT:
      if (spec.bits() < 1 || spec.bits() > 8) {
        return absl::InvalidArgumentError(
            absl::StrCat("quant: bits ", spec.bits(), " not in 1..8"));
      }
      if (spec.scale() == CodecSpec::PER_GROUP && (spec.group() < 32 || spec.group() > 256)) {
        return absl::InvalidArgumentError(
            absl::StrCat("quant: group ", spec.group(), " not in 32..256"));
      }
      break;
    case CodecSpec::SIGN:
      if (spec.scale() == CodecSpec::PER_GROUP && (spec.group() < 32 || spec.group() > 256)) {
        return absl::InvalidArgumentError(
            absl::StrCat("sign: group ", spec.group(), " not in 32..256"));
      }
      break;
    case CodecSpec::TOP_K:
    case CodecSpec::RANDOM_K:
      if (!InUnit(spec.ratio()))
        return absl::InvalidArgumentError("topk, randomk: the ratio is over 0 and at most 1");
      return ValidateValues(spec, depth);
    case CodecSpec::LOW_RANK:
      if (spec.rank() < 1 || spec.rank() > 128)
        return absl::InvalidArgumentError(
            absl::StrCat("lowrank: rank ", spec.rank(), " not in 1..128"));
      return ValidateValues(spec, depth);
    case CodecSpec::AUTOENCODER:
      return ValidateAutoencoder(spec, depth);
    case CodecSpec::KEPT:
      return ValidateKept(spec, depth);
    case CodecSpec::COCKTAIL:
      if (!InUnit(spec.subset()) || !InUnit(spec.ratio()) || spec.bits() < 1 || spec.bits() > 8) {
        return absl::InvalidArgumentError(
            "cocktail: subset and ratio are over 0 and at most 1, bits 1 to 8");
      }
      break;
    case CodecSpec::FEEDBACK:
    case CodecSpec::LAZY:
    case CodecSpec::PREDICT:
    case CodecSpec::DELTA:
      return ValidateWrapper(spec, depth);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("codec kind ", spec.kind(), " is not known to this build"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateCodec(const CodecSpec& spec) { return Validate(spec, 0); }

}  // namespace isthmus
