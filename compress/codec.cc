#include "compress/codec.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/delta.h"
#include "compress/entropy.h"
#include "compress/plain.h"
#include "compress/quant.h"
#include "compress/sample_codec.h"
#include "compress/stateless.h"
#include "proto/codec_text.h"

namespace isthmus::compress {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 33;  // of a sample; far above any model's, and far from overflow

absl::Status CheckOptions(const CodecSpec& spec, const CodecOptions& options) {
  RETURN_IF_ERROR(ValidateCodec(spec));
  if (options.positions < 0 || options.hidden < 0 || options.positions > kMaxElements || options.hidden > kMaxElements ||
      (options.hidden > 0 && options.positions > kMaxElements / options.hidden)) {
    return absl::InvalidArgumentError(absl::StrCat("boundary of ", options.positions, " x ", options.hidden, " elements"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleCodec>> MakeSampleCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed) {
  switch (spec.kind()) {
    case CodecSpec::NONE:
      return std::make_unique<PlainCodec>(DType::kF32, shape);
    case CodecSpec::BF16:
      return std::make_unique<PlainCodec>(DType::kBf16, shape);
    case CodecSpec::FP16:
      return std::make_unique<PlainCodec>(DType::kF16, shape);
    case CodecSpec::QUANT:
      return std::make_unique<QuantCodec>(spec, shape, seed);
    default:
      return absl::UnimplementedError(absl::StrCat("codec '", FormatCodec(spec), "' is not in this build"));
  }
}

absl::StatusOr<std::unique_ptr<Encoder>> MakeEncoder(const CodecSpec& spec, const CodecOptions& options) {
  RETURN_IF_ERROR(CheckOptions(spec, options));
  std::unique_ptr<Encoder> encoder;
  if (spec.kind() == CodecSpec::DELTA) {
    ASSIGN_OR_RETURN(DeltaState state, DeltaState::Make(spec, options));
    encoder = std::make_unique<DeltaEncoder>(std::move(state));
  } else {
    ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> codec, MakeSampleCodec(spec, {options.positions, options.hidden}, options.seed));
    encoder = std::make_unique<StatelessEncoder>(std::move(codec), options);
  }
  return spec.zstd() ? MakeZstdEncoder(std::move(encoder)) : std::move(encoder);
}

absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const CodecSpec& spec, const CodecOptions& options) {
  RETURN_IF_ERROR(CheckOptions(spec, options));
  std::unique_ptr<Decoder> decoder;
  if (spec.kind() == CodecSpec::DELTA) {
    ASSIGN_OR_RETURN(DeltaState state, DeltaState::Make(spec, options));
    decoder = std::make_unique<DeltaDecoder>(std::move(state));
  } else {
    ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> codec, MakeSampleCodec(spec, {options.positions, options.hidden}, options.seed));
    decoder = std::make_unique<StatelessDecoder>(std::move(codec), options);
  }
  return spec.zstd() ? MakeZstdDecoder(std::move(decoder), spec) : std::move(decoder);
}

}  // namespace isthmus::compress
