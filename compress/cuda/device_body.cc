#include "compress/cuda/device_body.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/codecs/at_indices.h"
#include "compress/codecs/low_rank.h"
#include "compress/codecs/sparse.h"
#include "compress/cuda/device_kept.h"
#include "compress/cuda/device_low_rank.h"
#include "compress/cuda/device_predict.h"
#include "compress/cuda/device_random_k.h"
#include "compress/cuda/device_top_k.h"
#include "compress/cuda/device_wrap.h"
#include "compress/simd/quantize.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress::cuda {
namespace {

constexpr int64_t kMaxLowRankSide = 0x7fffffff;  // cuBLAS counts in int

QuantFormat FormatOf(const CodecSpec& spec, uint64_t seed) {
  QuantFormat format;
  const bool sign = spec.kind() == CodecSpec::SIGN;
  format.bits = sign ? 1 : spec.bits();
  format.symmetric = sign || spec.symmetric();
  format.stochastic = spec.stochastic();
  format.scale_by = spec.scale() == CodecSpec::PER_TOKEN   ? ScaleBy::kToken
                    : spec.scale() == CodecSpec::PER_GROUP ? ScaleBy::kGroup
                                                           : ScaleBy::kChannel;
  format.rule = sign ? ScaleRule::kMean : spec.rms_scale() ? ScaleRule::kRms : ScaleRule::kMax;
  format.group = spec.group();
  format.seed = seed;
  return format;
}

class DeviceQuant : public DeviceSampleCodec {
 public:
  DeviceQuant(const CodecSpec& spec, const SampleShape& shape, uint64_t seed, Role role)
      : format_(FormatOf(spec, seed)), matrix_{shape.positions, shape.hidden}, role_(role) {
    const BodyLayout layout = LayoutOf(format_, matrix_);
    Append(2 * layout.scales);
    Append(layout.code_bytes);
  }

  bool FindsNotFinite() const override { return false; }
  bool HasNan(absl::string_view body) const override {
    for (size_t i = 0; i < static_cast<size_t>(segments_[0].bytes); i += 2) {
      uint16_t scale;
      std::memcpy(&scale, body.data() + i, 2);
      if (scale == kScaleNan) return true;
    }
    return false;
  }

  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs, absl::Span<const SampleInfo>,
                      Queue* queue) override {
    const int64_t count = static_cast<int64_t>(jobs.size());
    RETURN_IF_ERROR(scratch_.Reserve(EncodeScratchBytes(format_, matrix_, count)));
    const EncodeJob* to_encode = jobs.data();
    std::vector<EncodeJob> without_buffers;
    if (role_ == Role::kKey) {  // here m is written after the fact
      without_buffers.assign(jobs.begin(), jobs.end());
      for (EncodeJob& job : without_buffers) job.m = nullptr;
      to_encode = without_buffers.data();
    }
    RETURN_IF_ERROR(KernelStatus(
        QuantEncode(format_, matrix_, dtype, to_encode, count, scratch_.data(), queue->stream()),
        "quant"));
    std::vector<DecodeJob> rebuilt;
    for (const EncodeJob& job : jobs) {
      if (role_ == Role::kKey && job.m != nullptr) rebuilt.push_back({job.body, nullptr, job.m});
    }
    return DecodePlainly(DType::kBf16, rebuilt, queue);
  }

  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs, absl::Span<const SampleInfo>,
                      uint32_t* not_finite, Queue* queue) override {
    if (role_ != Role::kKey) return DecodePlainly(dtype, jobs, queue);
    std::vector<DecodeJob> values, buffers;
    for (const DecodeJob& job : jobs) {
      values.push_back({job.body, nullptr, job.out});
      if (job.m != nullptr) buffers.push_back({job.body, nullptr, job.m});
    }
    RETURN_IF_ERROR(DecodePlainly(dtype, values, queue));
    return DecodePlainly(DType::kBf16, buffers, queue);
  }

 private:
  absl::Status DecodePlainly(DType dtype, absl::Span<const DecodeJob> jobs, Queue* queue) {
    return KernelStatus(QuantDecode(format_, matrix_, dtype, jobs.data(),
                                    static_cast<int64_t>(jobs.size()), queue->stream()),
                        "quant");
  }

  const QuantFormat format_;
  const Matrix matrix_;
  const Role role_;
  DeviceMemory scratch_;
};

class DevicePlain : public DeviceSampleCodec {
 public:
  DevicePlain(DType wire, const SampleShape& shape) : wire_(wire), elements_(shape.elements()) {
    Append(elements_ * static_cast<int64_t>(DTypeBytes(wire)));
  }

  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs, absl::Span<const SampleInfo>,
                      Queue* queue) override {
    for (const EncodeJob& job : jobs) {
      RETURN_IF_ERROR(KernelStatus(PlainEncode(job.a, dtype, elements_, wire_, job.body, job.m,
                                               job.not_finite, queue->stream()),
                                   "plain"));
    }
    return absl::OkStatus();
  }

  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs, absl::Span<const SampleInfo>,
                      uint32_t* not_finite, Queue* queue) override {
    for (const DecodeJob& job : jobs) {
      RETURN_IF_ERROR(KernelStatus(PlainEncode(job.body, wire_, elements_, dtype, job.out, nullptr,
                                               nullptr, queue->stream()),
                                   "plain"));
      if (job.m == nullptr && not_finite == nullptr) continue;
      RETURN_IF_ERROR(KernelStatus(PlainEncode(job.body, wire_, elements_, DType::kF32, nullptr,
                                               job.m, not_finite, queue->stream()),
                                   "plain"));
    }
    return absl::OkStatus();
  }

 private:
  const DType wire_;
  const int64_t elements_;
};

}  // namespace

int64_t DeviceSampleCodec::wire_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.bytes;
  return bytes;
}

void DeviceSampleCodec::Append(int64_t bytes) {
  segments_.push_back({device_bytes_, bytes});
  device_bytes_ = (device_bytes_ + bytes + 15) / 16 * 16;
}

void DeviceSampleCodec::Embed(const DeviceSampleCodec& inner) {
  for (const Segment& segment : inner.segments_)
    segments_.push_back({device_bytes_ + segment.at, segment.bytes});
  device_bytes_ += inner.device_bytes_;
}

absl::Status BodyToHost(const DeviceSampleCodec& codec, const uint8_t* body, const SampleInfo& info,
                        Queue* queue, char** to) {
  std::string prefix;
  codec.AppendPrefix(info, &prefix);
  *to = std::copy(prefix.begin(), prefix.end(), *to);
  for (const Segment& segment : codec.segments()) {
    RETURN_IF_ERROR(queue->ToHost(*to, body + segment.at, segment.bytes));
    *to += segment.bytes;
  }
  return absl::OkStatus();
}

absl::Status BodyToDevice(const DeviceSampleCodec& codec, absl::string_view from, uint8_t* body,
                          std::vector<uint32_t>* tokens, Queue* queue) {
  const char* at = from.data() + codec.ReadPrefix(from, tokens);
  for (const Segment& segment : codec.segments()) {
    RETURN_IF_ERROR(queue->ToDevice(body + segment.at, at, segment.bytes));
    at += segment.bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SampleCodec>> MakeChecker(const CodecSpec& spec,
                                                         const CodecOptions& options) {
  CodecOptions small = options;
  small.predictor_bytes = 0;  // it predicts nothing
  const SampleShape shape{options.positions, options.hidden};
  if (spec.kind() == CodecSpec::KEPT)
    return MakeSampleCodec(ValuesOf(spec), TopKCodec::ValuesShape(spec, shape), small);
  return MakeSampleCodec(spec, shape, small);
}

namespace {

using MadeCodec = absl::StatusOr<std::unique_ptr<DeviceSampleCodec>>;

bool IsPlain(const CodecSpec& spec) {
  return spec.kind() == CodecSpec::NONE || spec.kind() == CodecSpec::BF16 ||
         spec.kind() == CodecSpec::FP16;
}

MadeCodec MakePlain(const CodecSpec& spec, const SampleShape& shape) {
  const DType wire = spec.kind() == CodecSpec::NONE   ? DType::kF32
                     : spec.kind() == CodecSpec::BF16 ? DType::kBf16
                                                      : DType::kF16;
  return std::make_unique<DevicePlain>(wire, shape);
}

MadeCodec MakeTopK(const CodecSpec& spec, const SampleShape& shape, const CodecOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> values,
                   MakeDeviceSampleCodec(ValuesOf(spec), TopKCodec::ValuesShape(spec, shape),
                                         options, Role::kDirect));
  return std::make_unique<DeviceTopK>(shape, TopKKept(spec, shape.positions, shape.hidden),
                                      spec.global(), std::move(values));
}

MadeCodec MakeRandomK(const CodecSpec& spec, const SampleShape& shape,
                      const CodecOptions& options) {
  const Runs runs = {shape.elements(), KeptOf(spec.ratio(), shape.elements()), options.seed,
                     spec.scaled()};
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> values,
                   MakeDeviceSampleCodec(ValuesOf(spec), {1, runs.kept}, options, Role::kDirect));
  return std::make_unique<DeviceRandomK>(runs, std::move(values));
}

MadeCodec MakeKept(const CodecSpec& spec, const CodecOptions& options) {
  ASSIGN_OR_RETURN(AtIndices at, AtIndices::Make(spec, options));
  ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceSampleCodec> values,
      MakeDeviceSampleCodec(ValuesOf(spec), at.values_shape(), options, Role::kDirect));
  return std::make_unique<DeviceKept>(std::move(at), std::move(values));
}

MadeCodec MakeLowRank(const CodecSpec& spec, const SampleShape& shape,
                      const CodecOptions& options) {
  const int64_t rank = LowRankCodec::Rank(spec, shape);
  ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceSampleCodec> left,
      MakeDeviceSampleCodec(ValuesOf(spec), {shape.positions, rank}, options, Role::kDirect));
  ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceSampleCodec> right,
      MakeDeviceSampleCodec(ValuesOf(spec), {rank, shape.hidden}, options, Role::kDirect));
  return std::make_unique<DeviceLowRank>(shape, rank, options.seed, std::move(left),
                                         std::move(right));
}

// Of Role::kDirect, all but plain and quantised.
MadeCodec MakeDirect(const CodecSpec& spec, const SampleShape& shape, const CodecOptions& options) {
  const bool sparse = shape.elements() < int64_t{1} << 32;
  const bool feedback = spec.kind() == CodecSpec::FEEDBACK || spec.kind() == CodecSpec::LAZY;
  if (spec.kind() == CodecSpec::TOP_K && sparse &&
      (spec.global() || shape.hidden <= kMaxTopKHidden))
    return MakeTopK(spec, shape, options);
  if (spec.kind() == CodecSpec::RANDOM_K && sparse) return MakeRandomK(spec, shape, options);
  if (spec.kind() == CodecSpec::KEPT) return MakeKept(spec, options);
  if (spec.kind() == CodecSpec::COCKTAIL && sparse)
    return MakeDirect(ExpandCocktail(spec), shape, options);
  if (spec.kind() == CodecSpec::LOW_RANK &&
      std::max(shape.positions, shape.hidden) <= kMaxLowRankSide)
    return MakeLowRank(spec, shape, options);
  if (feedback || spec.kind() == CodecSpec::PREDICT) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceSampleCodec> inner,
                     MakeDeviceSampleCodec(spec.inner(), shape, options, Role::kDirect));
    if (feedback)
      return std::make_unique<DeviceFeedback>(spec.kind() == CodecSpec::LAZY, shape,
                                              std::move(inner));
    return std::make_unique<DevicePredict>(spec, shape, options.predictor_bytes, std::move(inner));
  }
  if (spec.kind() == CodecSpec::AUTOENCODER && shape.hidden == spec.channels())
    return MakeDeviceSampleCodec(ValuesOf(spec), shape, options, Role::kDirect);
  return absl::UnimplementedError(absl::StrCat(
      "codec '", FormatCodec(spec), "' has no CUDA kernel for samples of ", shape.positions, " x ",
      shape.hidden, "; copy the tensor to the host and use the codec there"));
}

}  // namespace

MadeCodec MakeDeviceSampleCodec(const CodecSpec& spec, const SampleShape& shape,
                                const CodecOptions& options, Role role) {
  if (spec.kind() == CodecSpec::QUANT || spec.kind() == CodecSpec::SIGN)
    return std::make_unique<DeviceQuant>(spec, shape, options.seed, role);
  if (IsPlain(spec) && role != Role::kDelta) return MakePlain(spec, shape);
  MadeCodec codec = IsPlain(spec) ? MakePlain(spec, shape) : MakeDirect(spec, shape, options);
  if (!codec.ok() || role == Role::kDirect) return codec;
  if (role == Role::kDelta) return std::make_unique<DeviceDifference>(shape, *std::move(codec));
  if (spec.kind() == CodecSpec::PREDICT) return codec;  // it keeps buffers itself
  return std::make_unique<DeviceKey>(shape, *std::move(codec));
}

}  // namespace isthmus::compress::cuda
