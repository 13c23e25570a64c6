// Bytes that are read in pieces, so that memory does not grow with them: a file, what a stage
// would write into one, or, where they are few, a string. Thread: as the class that implements it
// says.
#ifndef ISTHMUS_BASE_FILE_BYTE_SOURCE_H_
#define ISTHMUS_BASE_FILE_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual int64_t bytes() const = 0;
  // Exactly `count` bytes from `offset` on, which lie within bytes().
  virtual absl::Status ReadAt(int64_t offset, size_t count, char* out) const = 0;
};

// Thread: any.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status ReadAt(int64_t offset, size_t count, char* out) const override;

 private:
  const std::string bytes_;
};

// All of it in order, in pieces of at most `piece_bytes`; ends with the first error of `use`.
absl::Status ForEachPiece(const ByteSource& source, size_t piece_bytes,
                          const std::function<absl::Status(absl::string_view piece)>& use);

// XXH3-64 of all of it, through a fixed buffer.
absl::StatusOr<uint64_t> HashOf(const ByteSource& source);

// All of it. ResourceExhausted: it has more than `most` bytes.
absl::StatusOr<std::string> ReadAll(const ByteSource& source, int64_t most);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_BYTE_SOURCE_H_
