#include "compress/codecs/plain.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace isthmus::compress {

void PlainCodec::Encode(RowSource& in, const SampleInfo& info, std::string* out, RowSink* rebuilt) {
  char* to = Extend(out, row_bytes() * static_cast<size_t>(shape_.positions));
  const size_t n = static_cast<size_t>(shape_.hidden);
  if (n == 0) return;
  scratch_.resize(n);
  for (int64_t p = 0; p < shape_.positions; ++p, to += row_bytes()) {
    const float* row = in.Row(p);
    if (dtype_ == DType::kF32) {
      std::memcpy(to, row, row_bytes());
    } else {  // through an aligned row: a body may start at any byte
      FromFloats(row, n, dtype_, scratch_.data());
      std::memcpy(to, scratch_.data(), row_bytes());
    }
    if (rebuilt == nullptr) continue;
    float* copy = rebuilt->Begin(p);
    if (dtype_ == DType::kF32) {
      if (copy != row) std::memcpy(copy, row, row_bytes());
    } else {
      ToFloats(scratch_.data(), dtype_, n, copy);
    }
    rebuilt->End(p);
  }
}

absl::StatusOr<size_t> PlainCodec::Check(absl::string_view bytes) const {
  const size_t need = row_bytes() * static_cast<size_t>(shape_.positions);
  if (bytes.size() < need) {
    return absl::InvalidArgumentError(
        absl::StrCat("plain sample of ", bytes.size(), " bytes, needs ", need));
  }
  return need;
}

void PlainCodec::Decode(absl::string_view body, RowSink& out) {
  const char* from = body.data();
  const size_t n = static_cast<size_t>(shape_.hidden);
  if (n == 0) return;
  scratch_.resize(n);
  for (int64_t p = 0; p < shape_.positions; ++p, from += row_bytes()) {
    float* row = out.Begin(p);
    if (dtype_ == DType::kF32) {
      std::memcpy(row, from, row_bytes());
    } else {
      std::memcpy(scratch_.data(), from, row_bytes());
      ToFloats(scratch_.data(), dtype_, n, row);
    }
    out.End(p);
  }
}

}  // namespace isthmus::compress
