#include "coordinator/cli/model/weight_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"

namespace isthmus::cli {
namespace {

constexpr int64_t kBufferElements = 64 << 10;

int64_t WidthOf(const std::string& dtype) { return dtype == "F32" ? 4 : 2; }

}  // namespace

absl::Status ReadFloats(const RandomAccessFile& file, const std::string& dtype, int64_t at,
                        int64_t elements,
                        const std::function<bool(int64_t, const std::vector<float>&)>& take) {
  std::string bytes;
  for (int64_t first = 0; first < elements;) {
    const int64_t count = std::min(kBufferElements, elements - first);
    bytes.resize(static_cast<size_t>(count * WidthOf(dtype)));
    RETURN_IF_ERROR(file.ReadAt(at + first * WidthOf(dtype), bytes.size(), bytes.data()));
    ASSIGN_OR_RETURN(const std::vector<float> values,
                     ToFloats(SafetensorsEntry{dtype, {count}, bytes}));
    if (!take(first, values)) return absl::OkStatus();
    first += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<Difference> CompareTensors(const RandomAccessFile& a_file,
                                          const SafetensorsPlace& a_place,
                                          const RandomAccessFile& b_file,
                                          const SafetensorsPlace& b_place, int64_t elements) {
  Difference difference;
  absl::Status read;
  RETURN_IF_ERROR(ReadFloats(
      a_file, a_place.dtype, a_place.at, elements, [&](int64_t first, const std::vector<float>& a) {
        const auto compare = [&](int64_t, const std::vector<float>& b) {
          for (size_t i = 0; i < a.size(); ++i) {
            if (a[i] == b[i]) continue;
            if (difference.count++ == 0)
              difference = {first + static_cast<int64_t>(i), 1, a[i], b[i]};
          }
          return true;
        };
        read = ReadFloats(b_file, b_place.dtype, b_place.at + first * WidthOf(b_place.dtype),
                          static_cast<int64_t>(a.size()), compare);
        return read.ok();
      }));
  RETURN_IF_ERROR(read);
  return difference;
}

absl::Status WeightStream::Add(const std::string& name, const std::vector<int64_t>& shape,
                               std::shared_ptr<const RandomAccessFile> file,
                               const SafetensorsPlace& place) {
  Tensor tensor{{name, "F32", shape}, std::move(file), place.dtype, place.at, 1};
  for (int64_t n : shape) tensor.elements *= n;
  if (tensor.elements * WidthOf(place.dtype) > place.bytes)
    return absl::InvalidArgumentError(absl::StrCat(name, " has fewer elements than its shape"));
  absl::Status bad;
  const auto finite = [&](int64_t first, const std::vector<float>& values) {
    for (size_t i = 0; i < values.size() && bad.ok(); ++i) {
      if (std::isfinite(values[i])) continue;
      bad = absl::InvalidArgumentError(absl::StrCat(name, ": element ",
                                                    first + static_cast<int64_t>(i), " is ",
                                                    values[i], ": the model can't be trained"));
    }
    return bad.ok();
  };
  const absl::Status read =
      ReadFloats(*tensor.file, tensor.dtype, tensor.at, tensor.elements, finite);
  if (!read.ok()) return Annotate(read, name);
  RETURN_IF_ERROR(bad);
  tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

int64_t WeightStream::elements() const {
  int64_t sum = 0;
  for (const Tensor& tensor : tensors_) sum += tensor.elements;
  return sum;
}

absl::Status WeightStream::Seal() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.spec.name < b.spec.name; });
  std::vector<SafetensorsSpec> specs;
  for (const Tensor& tensor : tensors_) specs.push_back(tensor.spec);
  ASSIGN_OR_RETURN(head_, SafetensorsHead(specs, {{"format", "pt"}}));
  Hasher hasher;
  bytes_ = 0;
  RETURN_IF_ERROR(Write([&](absl::string_view piece) {
    hasher.Update(piece.data(), piece.size());
    bytes_ += static_cast<int64_t>(piece.size());
    return true;
  }));
  checksum_ = hasher.Digest();
  return absl::OkStatus();
}

absl::Status WeightStream::Write(const Take& take) const {
  bool more = take(head_);
  for (const Tensor& tensor : tensors_) {
    if (!more) return absl::OkStatus();
    RETURN_IF_ERROR(ReadFloats(*tensor.file, tensor.dtype, tensor.at, tensor.elements,
                               [&](int64_t, const std::vector<float>& values) {
                                 more = take({reinterpret_cast<const char*>(values.data()),
                                              values.size() * sizeof(float)});
                                 return more;
                               }));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::cli
