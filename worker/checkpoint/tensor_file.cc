#include "worker/checkpoint/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"

namespace isthmus::worker {
namespace {

constexpr char kPrefix[] = "transformer.";
constexpr int64_t kWidth = sizeof(float);

// Where a tensor of the stage comes from.
struct Found {
  int tensor = 0;
  int64_t elements = 0;
  const ByteSource* file = nullptr;
  SafetensorsPlace place;
};

struct Places {
  const ByteSource* file = nullptr;
  std::map<std::string, SafetensorsPlace> by_name;
};

// Null: no file has it.
const SafetensorsPlace* Find(const std::vector<Places>& files, const std::string& name,
                             const ByteSource** file) {
  for (const std::string& called : {name, std::string(absl::StripPrefix(name, kPrefix))}) {
    for (const Places& places : files) {
      const auto it = places.by_name.find(called);
      if (it == places.by_name.end()) continue;
      *file = places.file;
      return &it->second;
    }
  }
  return nullptr;
}

absl::Status CheckPlace(const StageTensor& tensor, const SafetensorsPlace& place,
                        absl::string_view what) {
  if (place.shape != tensor.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": tensor ", tensor.name, " is [", absl::StrJoin(place.shape, ", "),
                     "] but the job's model needs [", absl::StrJoin(tensor.shape, ", "), "]"));
  }
  if (place.dtype != "F32" && place.dtype != "F16" && place.dtype != "BF16") {
    return absl::InvalidArgumentError(absl::StrCat(what, ": tensor ", tensor.name, " has type ",
                                                   place.dtype,
                                                   "; convert it to F32, F16 or BF16"));
  }
  return absl::OkStatus();
}

absl::Status Fill(const Found& found, std::vector<float>* buffer, Stage* stage) {
  const auto most = static_cast<int64_t>(buffer->size());
  for (int64_t at = 0; at < found.elements; at += most) {
    const auto values = absl::MakeSpan(*buffer).first(
        static_cast<size_t>(std::min<int64_t>(most, found.elements - at)));
    RETURN_IF_ERROR(ReadFloats(*found.file, found.place, at, values));
    RETURN_IF_ERROR(stage->WriteTensor(found.tensor, at, values));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageFile>> StageFile::Make(Stage* stage, const TakesTensor& takes) {
  const std::vector<StageTensor> all = stage->Tensors();
  std::vector<std::pair<SafetensorsSpec, int>> chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (takes(all[i])) chosen.push_back({{all[i].name, "F32", all[i].shape}, static_cast<int>(i)});
  }
  if (chosen.empty()) return nullptr;
  std::sort(chosen.begin(), chosen.end(),
            [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  std::vector<SafetensorsSpec> specs;
  for (const auto& [spec, tensor] : chosen) specs.push_back(spec);
  std::unique_ptr<StageFile> file(new StageFile(stage));
  ASSIGN_OR_RETURN(file->head_, SafetensorsHead(specs, {{"format", "pt"}}));
  file->bytes_ = static_cast<int64_t>(file->head_.size());
  for (const auto& [spec, tensor] : chosen) {
    const int64_t bytes = all[tensor].elements() * kWidth;
    file->places_.push_back({tensor, file->bytes_, bytes});
    file->bytes_ += bytes;
  }
  return file;
}

absl::Status StageFile::ReadAt(int64_t offset, size_t count, char* out) const {
  const auto head = static_cast<int64_t>(head_.size());
  if (offset < head) {
    const size_t n = std::min(count, static_cast<size_t>(head - offset));
    std::memcpy(out, head_.data() + offset, n);
    offset += static_cast<int64_t>(n);
    out += n;
    count -= n;
  }
  auto place = std::upper_bound(places_.begin(), places_.end(), offset,
                                [](int64_t at, const Place& p) { return at < p.at + p.bytes; });
  for (; count > 0 && place != places_.end(); ++place) {
    const int64_t from = offset - place->at;
    const size_t n = std::min(count, static_cast<size_t>(place->bytes - from));
    RETURN_IF_ERROR(ReadTensorAt(*place, from, n, out));
    offset += static_cast<int64_t>(n);
    out += n;
    count -= n;
  }
  return count == 0 ? absl::OkStatus()
                    : absl::OutOfRangeError(absl::StrCat("byte ", offset, " of ", bytes_));
}

absl::Status StageFile::ReadTensorAt(const Place& place, int64_t offset, size_t count,
                                     char* out) const {
  const int64_t first = offset / kWidth;
  const int64_t end = (offset + static_cast<int64_t>(count) + kWidth - 1) / kWidth;
  std::vector<float> values(static_cast<size_t>(end - first));
  RETURN_IF_ERROR(stage_->ReadTensor(place.tensor, first, absl::MakeSpan(values)));
  std::memcpy(out, reinterpret_cast<const char*>(values.data()) + (offset - first * kWidth), count);
  return absl::OkStatus();
}

absl::Status FillStage(const std::vector<const ByteSource*>& files, const TakesTensor& takes,
                       absl::string_view what, Stage* stage) {
  std::vector<Places> places;
  for (const ByteSource* file : files) {
    ASSIGN_OR_RETURN(auto by_name, ReadSafetensorsPlaces(*file));
    places.push_back({file, std::move(by_name)});
  }
  const std::vector<StageTensor> tensors = stage->Tensors();
  std::vector<Found> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StageTensor& tensor = tensors[i];
    if (!takes(tensor)) continue;
    Found found{static_cast<int>(i), tensor.elements(), nullptr, {}};
    const SafetensorsPlace* place = Find(places, tensor.name, &found.file);
    if (IsOwnTensor(tensor.name) && (place == nullptr || place->shape != tensor.shape)) {
      if (tensor.weight())
        LogWarning(what, ": ", tensor.name, " of [", absl::StrJoin(tensor.shape, ", "),
                   "] is not in the checkpoint: this autoencoder starts anew");
      continue;
    }
    if (place == nullptr)
      return absl::NotFoundError(absl::StrCat(what, ": tensor ", tensor.name, " is missing"));
    RETURN_IF_ERROR(CheckPlace(tensor, *place, what));
    found.place = *place;
    all.push_back(std::move(found));
  }
  std::vector<float> buffer(kPieceBytes / kWidth);
  for (const Found& found : all) RETURN_IF_ERROR(Fill(found, &buffer, stage));
  return absl::OkStatus();
}

}  // namespace isthmus::worker
