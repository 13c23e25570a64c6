#include "compress/codecs/sparse.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/codecs/index_set.h"

namespace isthmus::compress {
namespace {

// Of randomk: the sample is cut into `kept` runs.
int64_t RunStart(int64_t i, int64_t kept, int64_t elements) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(i) * static_cast<uint64_t>(elements) /
                              static_cast<uint64_t>(kept));
}

}  // namespace

void Scatter(absl::Span<const uint32_t> indices, const std::vector<float>& kept,
             const SampleShape& shape, RowSink& out) {
  const size_t hidden = static_cast<size_t>(shape.hidden);
  size_t i = 0;
  for (int64_t p = 0; p < shape.positions; ++p) {
    float* row = out.Begin(p);
    std::fill_n(row, hidden, 0.0f);
    const size_t start = static_cast<size_t>(p) * hidden;
    for (; i < indices.size() && indices[i] < start + hidden; ++i)
      row[indices[i] - start] = kept[i];
    out.End(p);
  }
}

void Gather(RowSource& in, absl::Span<const uint32_t> indices, const SampleShape& shape,
            std::vector<float>* kept) {
  const size_t hidden = static_cast<size_t>(shape.hidden);
  kept->resize(indices.size());
  size_t i = 0;
  for (int64_t p = 0; p < shape.positions && i < indices.size(); ++p) {
    const size_t start = static_cast<size_t>(p) * hidden;
    if (indices[i] >= start + hidden) continue;
    const float* row = in.Row(p);
    for (; i < indices.size() && indices[i] < start + hidden; ++i)
      (*kept)[i] = row[indices[i] - start];
  }
}

void DrawIndices(int64_t elements, int64_t kept, uint64_t seed, uint32_t draw,
                 std::vector<uint32_t>* indices) {
  indices->reserve(indices->size() + static_cast<size_t>(kept));
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t start = RunStart(i, kept, elements);
    const uint64_t length = static_cast<uint64_t>(RunStart(i + 1, kept, elements) - start);
    indices->push_back(
        static_cast<uint32_t>(start) +
        static_cast<uint32_t>(RandomBelow(seed, draw, static_cast<uint64_t>(i), length)));
  }
}

void ScaleByRuns(int64_t elements, std::vector<float>* kept) {
  const int64_t count = static_cast<int64_t>(kept->size());
  for (int64_t i = 0; i < count; ++i) {
    (*kept)[static_cast<size_t>(i)] *=
        static_cast<float>(RunStart(i + 1, count, elements) - RunStart(i, count, elements));
  }
}

void SelectLargest(const float* x, size_t n, size_t k, uint32_t first,
                   std::vector<uint32_t>* scratch, std::vector<uint32_t>* indices) {
  if (k == 0) return;
  scratch->resize(n);
  for (size_t i = 0; i < n; ++i) (*scratch)[i] = FloatBits(x[i]) & 0x7fffffffu;
  std::nth_element(scratch->begin(), scratch->begin() + static_cast<std::ptrdiff_t>(k - 1),
                   scratch->end(), std::greater<uint32_t>());
  const uint32_t least = (*scratch)[k - 1];
  size_t ties = k;  // how many of the least are kept
  for (size_t i = 0; i + 1 < k; ++i) ties -= (*scratch)[i] > least;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = FloatBits(x[i]) & 0x7fffffffu;
    if (bits < least || (bits == least && ties == 0)) continue;
    if (bits == least) --ties;
    indices->push_back(first + static_cast<uint32_t>(i));
  }
}

TopKCodec::TopKCodec(const CodecSpec& spec, const SampleShape& shape,
                     std::unique_ptr<SampleCodec> values)
    : spec_(spec),
      shape_(shape),
      values_shape_(ValuesShape(spec, shape)),
      values_(std::move(values)) {}

SampleShape TopKCodec::ValuesShape(const CodecSpec& spec, const SampleShape& shape) {
  const int64_t kept = TopKKept(spec, shape.positions, shape.hidden);
  if (spec.global() || shape.positions == 0) return {1, kept};
  return {shape.positions, kept / shape.positions};
}

void TopKCodec::Select(RowSource& in) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  indices_.clear();
  if (spec_.global()) {
    sample_.resize(static_cast<size_t>(shape_.elements()));
    for (int64_t p = 0; p < shape_.positions; ++p)
      std::copy_n(in.Row(p), hidden,
                  sample_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(p) * hidden));
    SelectLargest(sample_.data(), sample_.size(), static_cast<size_t>(values_shape_.hidden), 0,
                  &scratch_, &indices_);
  } else {
    for (int64_t p = 0; p < shape_.positions; ++p) {
      SelectLargest(in.Row(p), hidden, static_cast<size_t>(values_shape_.hidden),
                    static_cast<uint32_t>(static_cast<size_t>(p) * hidden), &scratch_, &indices_);
    }
  }
  Gather(in, indices_, shape_, &kept_);
}

void TopKCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) {
  Select(in);
  WriteIndexSet(indices_, shape_.elements(), out);
  std::vector<float> coded(kept_.size());
  ArrayRows rows(kept_.data(), values_shape_.hidden), back(coded.data(), values_shape_.hidden);
  values_->Encode(rows, info, out, rebuilt != nullptr ? &back : nullptr);
  if (rebuilt != nullptr) Scatter(indices_, coded, shape_, *rebuilt);
}

absl::StatusOr<size_t> TopKCodec::Check(absl::string_view bytes) const {
  const size_t need =
      static_cast<size_t>(IndexSetBytes(shape_.elements(), values_shape_.elements()));
  if (bytes.size() < need)
    return absl::InvalidArgumentError(
        absl::StrCat("topk: ", bytes.size(), " bytes, the indices alone need ", need));
  std::vector<uint32_t> indices;
  RETURN_IF_ERROR(
      ReadIndexSet(bytes.substr(0, need), shape_.elements(), values_shape_.elements(), &indices));
  for (size_t i = 0; !spec_.global() && i < indices.size(); ++i) {
    if (static_cast<int64_t>(indices[i]) / shape_.hidden !=
        static_cast<int64_t>(i) / values_shape_.hidden) {
      return absl::InvalidArgumentError("topk: a token with too many or too few indices");
    }
  }
  ASSIGN_OR_RETURN(const size_t values, values_->Check(bytes.substr(need)));
  return need + values;
}

void TopKCodec::Decode(absl::string_view body, RowSink& out) {
  const size_t index_bytes =
      static_cast<size_t>(IndexSetBytes(shape_.elements(), values_shape_.elements()));
  ReadIndexSet(body.substr(0, index_bytes), shape_.elements(), values_shape_.elements(), &indices_)
      .IgnoreError();  // checked
  kept_.resize(indices_.size());
  ArrayRows rows(kept_.data(), values_shape_.hidden);
  values_->Decode(body.substr(index_bytes), rows);
  Scatter(indices_, kept_, shape_, out);
}

RandomKCodec::RandomKCodec(const CodecSpec& spec, const SampleShape& shape, uint64_t seed,
                           std::unique_ptr<SampleCodec> values)
    : spec_(spec),
      shape_(shape),
      seed_(seed),
      kept_count_(KeptOf(spec.ratio(), shape.elements())),
      values_(std::move(values)) {}

void RandomKCodec::Draw(uint32_t draw) {
  indices_.clear();
  DrawIndices(shape_.elements(), kept_count_, seed_, draw, &indices_);
}

void RandomKCodec::Scale() {
  if (spec_.scaled()) ScaleByRuns(shape_.elements(), &kept_);
}

void RandomKCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out,
                          RowSink* rebuilt) {
  const uint32_t draw = static_cast<uint32_t>(Mix64(info.draw));
  std::memcpy(Extend(out, sizeof(draw)), &draw, sizeof(draw));
  Draw(draw);
  Gather(in, indices_, shape_, &kept_);
  std::vector<float> coded(kept_.size());
  ArrayRows rows(kept_.data(), kept_count_), back(coded.data(), kept_count_);
  values_->Encode(rows, info, out, rebuilt != nullptr ? &back : nullptr);
  if (rebuilt == nullptr) return;
  kept_.swap(coded);
  Scale();
  Scatter(indices_, kept_, shape_, *rebuilt);
}

absl::StatusOr<size_t> RandomKCodec::Check(absl::string_view bytes) const {
  if (bytes.size() < sizeof(uint32_t))
    return absl::InvalidArgumentError("randomk: the frame ends in the draw");
  ASSIGN_OR_RETURN(const size_t values, values_->Check(bytes.substr(sizeof(uint32_t))));
  return sizeof(uint32_t) + values;
}

void RandomKCodec::Decode(absl::string_view body, RowSink& out) {
  uint32_t draw;
  std::memcpy(&draw, body.data(), sizeof(draw));
  Draw(draw);
  kept_.resize(indices_.size());
  ArrayRows rows(kept_.data(), kept_count_);
  values_->Decode(body.substr(sizeof(draw)), rows);
  Scale();
  Scatter(indices_, kept_, shape_, out);
}

}  // namespace isthmus::compress
