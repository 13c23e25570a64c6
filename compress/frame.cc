#include "compress/frame.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace isthmus::compress {

absl::Status CheckTensor(const void* data, Device device, const TensorDims& d,
                         const CodecOptions& options) {
  if (device != options.device) {
    return absl::InvalidArgumentError(device == Device::kCuda
                                          ? "a device tensor for a codec of host memory: make it "
                                            "with CodecOptions::device = kCuda"
                                          : "a host tensor for a codec of device memory");
  }
  if (d.samples < 0 || d.positions != options.positions || d.hidden != options.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("frame of ", d.samples, " x ", d.positions,
                                                   " x ", d.hidden, " on a boundary of n x ",
                                                   options.positions, " x ", options.hidden));
  }
  if (options.max_samples > 0 && d.samples > options.max_samples) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", d.samples, " samples, the plan allows ", options.max_samples));
  }
  if (data == nullptr && d.elements() > 0)
    return absl::InvalidArgumentError("frame without memory");
  return absl::OkStatus();
}

absl::Status CheckIds(absl::Span<const uint32_t> ids, int64_t samples) {
  if (static_cast<int64_t>(ids.size()) != samples) {
    return absl::InvalidArgumentError(
        absl::StrCat(ids.size(), " sample ids for ", samples, " samples"));
  }
  std::vector<uint32_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sample ", *twice, " is twice in one frame"));
}

absl::Status CheckTokens(absl::Span<const uint32_t> tokens, const TensorDims& dims) {
  if (static_cast<int64_t>(tokens.size()) == dims.samples * dims.positions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("predict: ", tokens.size(), " token ids for ",
                                                 dims.samples, " x ", dims.positions,
                                                 " positions"));
}

absl::Status CheckVersion(uint64_t version, uint64_t last) {
  if (version == last + 1) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("frame ", version, " after frame ", last, ": ",
                   version <= last ? "a repeated or stale frame" : "frames were lost",
                   "; the link must be opened anew"));
}

}  // namespace isthmus::compress
