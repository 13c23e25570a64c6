#include "compress/codecs/at_indices.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/codecs/sparse.h"
#include "compress/frame.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress {
namespace {

absl::Status SaveFrames(uint64_t version, SampleCodec* values, StateWriter* to) {
  to->Put(version);
  values->SaveState(to);
  return to->status();
}

absl::Status LoadFrames(StateReader* from, uint64_t* version, SampleCodec* values) {
  *version = from->Get<uint64_t>("number of frames");
  values->LoadState(from);
  return from->status();
}

}  // namespace

AtIndices::AtIndices(const CodecSpec& spec, const CodecOptions& options)
    : options_(options),
      shape_{options.positions, options.hidden},
      values_shape_(TopKCodec::ValuesShape(spec, shape_)),  // a kept has its ratio and global
      scaled_(spec.scaled()) {}

absl::StatusOr<AtIndices> AtIndices::Make(const CodecSpec& spec, const CodecOptions& options) {
  if (spec.ratio() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        FormatCodec(spec), ": the forward codec of its boundary is not known: BindBackward"));
  }
  AtIndices made(spec, options);
  if (made.shape_.elements() > kMaxSparseElements)
    return absl::InvalidArgumentError("kept: a sample of 2^32 elements or more");
  ASSIGN_OR_RETURN(made.values_, MakeSampleCodec(ValuesOf(spec), made.values_shape_, options));
  return made;
}

absl::Status AtIndices::CheckIndices(absl::Span<const uint32_t> indices, int64_t samples) const {
  if (indices.size() != static_cast<size_t>(samples) * kept()) {
    return absl::InvalidArgumentError(absl::StrCat("kept: ", indices.size(),
                                                   " indices of the forward pass, where it kept ",
                                                   kept(), " of each of ", samples, " samples"));
  }
  const uint64_t elements = static_cast<uint64_t>(shape_.elements());
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= elements || (i % kept() > 0 && indices[i] <= indices[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat("kept: index ", indices[i], " of sample ", i / kept(),
                       " is out of order or not within its ", elements, " elements"));
    }
  }
  return absl::OkStatus();
}

absl::Status AtIndicesEncoder::Encode(const TensorView& in, const FrameContext& context,
                                      std::string* payload) {
  RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, s_.options()));
  RETURN_IF_ERROR(s_.CheckIndices(context.indices, in.dims.samples));
  payload->clear();
  for (int64_t i = 0; i < in.dims.samples; ++i) {
    TensorRows rows(in, i);
    Gather(rows, s_.IndicesOf(context, i), s_.shape(), &list_);
    ArrayRows list(list_.data(), s_.values_shape().hidden);
    s_.values()->Encode(list, InfoOf(version_, i, in.dims, context), payload, nullptr);
  }
  ++version_;
  CountFrame(in.dims, payload->size(), &stats_);
  return absl::OkStatus();
}

absl::Status AtIndicesDecoder::Decode(absl::string_view payload, uint64_t version,
                                      const FrameContext& context, const MutableTensorView& out) {
  RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, s_.options()));
  RETURN_IF_ERROR(s_.CheckIndices(context.indices, out.dims.samples));
  std::vector<absl::string_view> bodies;
  absl::string_view rest = payload;
  for (int64_t i = 0; i < out.dims.samples; ++i) {
    const absl::StatusOr<size_t> bytes = s_.values()->Check(rest);
    if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("sample ", i, " of the frame"));
    bodies.push_back(rest.substr(0, *bytes));
    rest.remove_prefix(*bytes);
  }
  if (!rest.empty())
    return absl::InvalidArgumentError(absl::StrCat(rest.size(), " bytes after the last sample"));
  list_.resize(s_.kept());
  for (int64_t i = 0; i < out.dims.samples; ++i) {
    ArrayRows list(list_.data(), s_.values_shape().hidden);
    s_.values()->Decode(bodies[static_cast<size_t>(i)], list);
    if (s_.scaled()) ScaleByRuns(s_.shape().elements(), &list_);
    TensorSink sink(out, i);
    Scatter(s_.IndicesOf(context, i), list_, s_.shape(), sink);
  }
  version_ = version;
  CountFrame(out.dims, payload.size(), &stats_);
  return absl::OkStatus();
}

absl::Status AtIndicesEncoder::SaveState(StateWriter* to) {
  return SaveFrames(version_, s_.values(), to);
}
absl::Status AtIndicesEncoder::LoadState(StateReader* from) {
  return LoadFrames(from, &version_, s_.values());
}
absl::Status AtIndicesDecoder::SaveState(StateWriter* to) {
  return SaveFrames(version_, s_.values(), to);
}
absl::Status AtIndicesDecoder::LoadState(StateReader* from) {
  return LoadFrames(from, &version_, s_.values());
}

}  // namespace isthmus::compress
