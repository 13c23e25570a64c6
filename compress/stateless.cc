#include "compress/stateless.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/frame.h"

namespace isthmus::compress {

absl::Status StatelessEncoder::Encode(const TensorView& in, const FrameContext& context, std::string* payload) {
  RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, options_));
  payload->clear();
  for (int64_t s = 0; s < in.dims.samples; ++s) {
    TensorRows rows(in, s);
    codec_->Encode(rows, DrawOf(version(), s), payload, nullptr);
  }
  CountFrame(in.dims, payload->size(), &stats_);
  return absl::OkStatus();
}

absl::Status StatelessDecoder::Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                                      const MutableTensorView& out) {
  RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, options_));
  std::vector<absl::string_view> bodies;
  absl::string_view rest = payload;
  for (int64_t s = 0; s < out.dims.samples; ++s) {
    absl::StatusOr<size_t> bytes = codec_->Check(rest);
    if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("sample ", s, " of the frame"));
    bodies.push_back(rest.substr(0, *bytes));
    rest.remove_prefix(*bytes);
  }
  if (!rest.empty()) return absl::InvalidArgumentError(absl::StrCat(rest.size(), " bytes after the last sample"));
  for (int64_t s = 0; s < out.dims.samples; ++s) {
    TensorSink sink(out, s);
    codec_->Decode(bodies[static_cast<size_t>(s)], sink);
  }
  version_ = version;
  CountFrame(out.dims, payload.size(), &stats_);
  return absl::OkStatus();
}

}  // namespace isthmus::compress
