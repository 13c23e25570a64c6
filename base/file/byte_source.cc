#include "base/file/byte_source.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"

namespace isthmus {
namespace {

constexpr size_t kHashBuffer = 256 << 10;

}  // namespace

absl::Status MemorySource::ReadAt(int64_t offset, size_t count, char* out) const {
  if (offset < 0 || offset > bytes() || count > bytes_.size() - static_cast<size_t>(offset)) {
    return absl::OutOfRangeError(absl::StrCat(
        "bytes ", offset, " to ", offset + static_cast<int64_t>(count), " of ", bytes_.size()));
  }
  if (count > 0) std::memcpy(out, bytes_.data() + offset, count);
  return absl::OkStatus();
}

absl::Status ForEachPiece(const ByteSource& source, size_t piece_bytes,
                          const std::function<absl::Status(absl::string_view)>& use) {
  const int64_t all = source.bytes();
  std::vector<char> buffer(
      static_cast<size_t>(std::min(static_cast<int64_t>(piece_bytes), std::max<int64_t>(1, all))));
  for (int64_t at = 0; at < all;) {
    const auto count =
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(buffer.size()), all - at));
    RETURN_IF_ERROR(source.ReadAt(at, count, buffer.data()));
    RETURN_IF_ERROR(use(absl::string_view(buffer.data(), count)));
    at += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> HashOf(const ByteSource& source) {
  Hasher hasher;
  RETURN_IF_ERROR(ForEachPiece(source, kHashBuffer, [&](absl::string_view piece) {
    hasher.Update(piece.data(), piece.size());
    return absl::OkStatus();
  }));
  return hasher.Digest();
}

absl::StatusOr<std::string> ReadAll(const ByteSource& source, int64_t most) {
  if (source.bytes() > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", source.bytes(), " bytes; at most ", most, " are read"));
  }
  std::string all(static_cast<size_t>(source.bytes()), '\0');
  RETURN_IF_ERROR(source.ReadAt(0, all.size(), all.data()));
  return all;
}

}  // namespace isthmus
