#include "compress/codec.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/codecs/at_indices.h"
#include "compress/codecs/by_matrix.h"
#include "compress/codecs/delta.h"
#include "compress/codecs/feedback.h"
#include "compress/codecs/low_rank.h"
#include "compress/codecs/per_sample.h"
#include "compress/codecs/plain.h"
#include "compress/codecs/predict.h"
#include "compress/codecs/quant.h"
#include "compress/codecs/sample_codec.h"
#include "compress/codecs/sparse.h"
#include "compress/codecs/zstd_codec.h"
#include "compress/cuda/device_codec.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress {
namespace {

constexpr int64_t kMaxElements =
    int64_t{1} << 33;  // of a sample; far above any model's, and far from overflow

absl::Status CheckOptions(const CodecSpec& spec, const CodecOptions& options) {
  RETURN_IF_ERROR(ValidateCodec(spec));
  if (options.positions < 0 || options.hidden < 0 || options.positions > kMaxElements ||
      options.hidden > kMaxElements ||
      (options.hidden > 0 && options.positions > kMaxElements / options.hidden)) {
    return absl::InvalidArgumentError(
        absl::StrCat("boundary of ", options.positions, " x ", options.hidden, " elements"));
  }
  return absl::OkStatus();
}

// zstd works on the payload, wherever that came from.
CodecSpec WithoutZstd(CodecSpec spec) {
  spec.clear_zstd();
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleCodec>> MakeSampleCodec(const CodecSpec& spec,
                                                             const SampleShape& shape,
                                                             const CodecOptions& options) {
  switch (spec.kind()) {
    case CodecSpec::NONE:
      return std::make_unique<PlainCodec>(DType::kF32, shape);
    case CodecSpec::BF16:
      return std::make_unique<PlainCodec>(DType::kBf16, shape);
    case CodecSpec::FP16:
      return std::make_unique<PlainCodec>(DType::kF16, shape);
    case CodecSpec::QUANT:
    case CodecSpec::SIGN:
      return std::make_unique<QuantCodec>(spec, shape, options.seed);
    case CodecSpec::TOP_K: {
      if (shape.elements() > kMaxSparseElements)
        return absl::InvalidArgumentError("topk: a sample of 2^32 elements or more");
      ASSIGN_OR_RETURN(
          std::unique_ptr<SampleCodec> values,
          MakeSampleCodec(ValuesOf(spec), TopKCodec::ValuesShape(spec, shape), options));
      return std::make_unique<TopKCodec>(spec, shape, std::move(values));
    }
    case CodecSpec::RANDOM_K: {
      if (shape.elements() > kMaxSparseElements)
        return absl::InvalidArgumentError("randomk: a sample of 2^32 elements or more");
      ASSIGN_OR_RETURN(
          std::unique_ptr<SampleCodec> values,
          MakeSampleCodec(ValuesOf(spec), {1, KeptOf(spec.ratio(), shape.elements())}, options));
      return std::make_unique<RandomKCodec>(spec, shape, options.seed, std::move(values));
    }
    case CodecSpec::COCKTAIL:
      return MakeSampleCodec(ExpandCocktail(spec), shape, options);
    case CodecSpec::LOW_RANK: {
      const int64_t rank = LowRankCodec::Rank(spec, shape);
      ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> left,
                       MakeSampleCodec(ValuesOf(spec), {shape.positions, rank}, options));
      ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> right,
                       MakeSampleCodec(ValuesOf(spec), {rank, shape.hidden}, options));
      return std::make_unique<LowRankCodec>(spec, shape, options.seed, std::move(left),
                                            std::move(right));
    }
    case CodecSpec::AUTOENCODER:  // the engine has it; what comes here has its channels already
      if (shape.hidden != spec.channels())
        return absl::InvalidArgumentError(
            absl::StrCat("autoencoder of ", spec.channels(), " channels for ", shape.hidden));
      return MakeSampleCodec(ValuesOf(spec), shape, options);
    case CodecSpec::FEEDBACK:
    case CodecSpec::LAZY: {
      ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> inner,
                       MakeSampleCodec(spec.inner(), shape, options));
      return std::make_unique<FeedbackCodec>(spec.kind() == CodecSpec::LAZY, shape,
                                             std::move(inner));
    }
    case CodecSpec::PREDICT: {
      ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> inner,
                       MakeSampleCodec(spec.inner(), shape, options));
      return std::make_unique<PredictCodec>(spec, shape, options.predictor_bytes, std::move(inner));
    }
    default:
      return absl::UnimplementedError(
          absl::StrCat("codec '", FormatCodec(spec), "' is not in this build"));
  }
}

absl::StatusOr<std::unique_ptr<Encoder>> MakeEncoder(const CodecSpec& spec,
                                                     const CodecOptions& options) {
  RETURN_IF_ERROR(CheckOptions(spec, options));
  if (!options.shapes.empty()) return MakeByMatrixEncoder(spec, options);
  std::unique_ptr<Encoder> encoder;
  if (options.device == Device::kCuda) {
    ASSIGN_OR_RETURN(encoder, cuda::MakeDeviceEncoder(WithoutZstd(spec), options, options.stream));
  } else if (spec.kind() == CodecSpec::DELTA) {
    ASSIGN_OR_RETURN(DeltaState state, DeltaState::Make(spec, options));
    encoder = std::make_unique<DeltaEncoder>(std::move(state));
  } else if (spec.kind() == CodecSpec::KEPT) {
    ASSIGN_OR_RETURN(AtIndices state, AtIndices::Make(spec, options));
    encoder = std::make_unique<AtIndicesEncoder>(std::move(state));
  } else {
    ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> codec,
                     MakeSampleCodec(spec, {options.positions, options.hidden}, options));
    encoder = std::make_unique<PerSampleEncoder>(std::move(codec), options);
  }
  return spec.zstd() ? MakeZstdEncoder(std::move(encoder)) : std::move(encoder);
}

absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const CodecSpec& spec,
                                                     const CodecOptions& options) {
  RETURN_IF_ERROR(CheckOptions(spec, options));
  if (!options.shapes.empty()) return MakeByMatrixDecoder(spec, options);
  std::unique_ptr<Decoder> decoder;
  if (options.device == Device::kCuda) {
    ASSIGN_OR_RETURN(decoder, cuda::MakeDeviceDecoder(WithoutZstd(spec), options, options.stream));
  } else if (spec.kind() == CodecSpec::DELTA) {
    ASSIGN_OR_RETURN(DeltaState state, DeltaState::Make(spec, options));
    decoder = std::make_unique<DeltaDecoder>(std::move(state));
  } else if (spec.kind() == CodecSpec::KEPT) {
    ASSIGN_OR_RETURN(AtIndices state, AtIndices::Make(spec, options));
    decoder = std::make_unique<AtIndicesDecoder>(std::move(state));
  } else {
    ASSIGN_OR_RETURN(std::unique_ptr<SampleCodec> codec,
                     MakeSampleCodec(spec, {options.positions, options.hidden}, options));
    decoder = std::make_unique<PerSampleDecoder>(std::move(codec), options, IsStateful(spec));
  }
  return spec.zstd() ? MakeZstdDecoder(std::move(decoder), spec) : std::move(decoder);
}

}  // namespace isthmus::compress
