#include "compress/codecs/per_sample.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/frame.h"

namespace isthmus::compress {
namespace {

absl::Status SaveFrames(uint64_t version, SampleCodec* codec, StateWriter* to) {
  to->Put(version);
  codec->SaveState(to);
  return to->status();
}

absl::Status LoadFrames(StateReader* from, uint64_t* version, SampleCodec* codec) {
  *version = from->Get<uint64_t>("number of frames");
  codec->LoadState(from);
  return from->status();
}

}  // namespace

absl::Status PerSampleEncoder::Encode(const TensorView& in, const FrameContext& context,
                                      std::string* payload) {
  RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, options_));
  if (codec_->NeedsTokens()) RETURN_IF_ERROR(CheckTokens(context.token_ids, in.dims));
  payload->clear();
  indices_.clear();
  for (int64_t s = 0; s < in.dims.samples; ++s) {
    TensorRows rows(in, s);
    codec_->Encode(rows, InfoOf(version(), s, in.dims, context), payload, nullptr);
    codec_->Settle(true);
    indices_.insert(indices_.end(), codec_->indices().begin(), codec_->indices().end());
  }
  codec_->EndFrame();
  ++version_;
  CountFrame(in.dims, payload->size(), &stats_);
  return absl::OkStatus();
}

absl::Status PerSampleEncoder::SaveState(StateWriter* to) {
  return SaveFrames(version_, codec_.get(), to);
}
absl::Status PerSampleEncoder::LoadState(StateReader* from) {
  return LoadFrames(from, &version_, codec_.get());
}
absl::Status PerSampleDecoder::SaveState(StateWriter* to) {
  return SaveFrames(version_, codec_.get(), to);
}
absl::Status PerSampleDecoder::LoadState(StateReader* from) {
  return LoadFrames(from, &version_, codec_.get());
}

absl::Status PerSampleDecoder::Decode(absl::string_view payload, uint64_t version,
                                      const FrameContext& context, const MutableTensorView& out) {
  RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, options_));
  if (check_version_) RETURN_IF_ERROR(CheckVersion(version, version_));
  std::vector<absl::string_view> bodies;
  absl::string_view rest = payload;
  for (int64_t s = 0; s < out.dims.samples; ++s) {
    absl::StatusOr<size_t> bytes = codec_->Check(rest);
    if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("sample ", s, " of the frame"));
    bodies.push_back(rest.substr(0, *bytes));
    rest.remove_prefix(*bytes);
  }
  if (!rest.empty())
    return absl::InvalidArgumentError(absl::StrCat(rest.size(), " bytes after the last sample"));
  tokens_.clear();
  indices_.clear();
  for (int64_t s = 0; s < out.dims.samples; ++s) {
    TensorSink sink(out, s);
    codec_->Decode(bodies[static_cast<size_t>(s)], sink);
    codec_->Settle(true);
    tokens_.insert(tokens_.end(), codec_->tokens().begin(), codec_->tokens().end());
    indices_.insert(indices_.end(), codec_->indices().begin(), codec_->indices().end());
  }
  codec_->EndFrame();
  version_ = version;
  CountFrame(out.dims, payload.size(), &stats_);
  return absl::OkStatus();
}

}  // namespace isthmus::compress
