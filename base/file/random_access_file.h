// A regular file opened for reading in pieces, so that memory does not grow with it. What was
// opened stays readable when the file is removed or another one is renamed over it. Thread: any.
#ifndef ISTHMUS_BASE_FILE_RANDOM_ACCESS_FILE_H_
#define ISTHMUS_BASE_FILE_RANDOM_ACCESS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file/byte_source.h"

namespace isthmus {

class RandomAccessFile : public ByteSource {
 public:
  // NotFound: it is not there. FailedPrecondition: not a regular file (opening a pipe would wait).
  static absl::StatusOr<RandomAccessFile> Open(const std::string& path);
  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&&) = delete;
  ~RandomAccessFile() override;

  const std::string& path() const { return path_; }
  int64_t bytes() const override { return bytes_; }  // when it was opened

  // Exactly `count` bytes from `offset` on. DataLoss: the file is shorter by now, or the disk can't
  // read it.
  absl::Status ReadAt(int64_t offset, size_t count, char* out) const override;
  // XXH3-64 of the whole file, through a fixed buffer.
  absl::StatusOr<uint64_t> Hash() const { return HashOf(*this); }

 private:
  RandomAccessFile(std::string path, int fd, int64_t bytes);
  std::string path_;
  int fd_;
  int64_t bytes_;
};

// Exactly `count` bytes of an open file; `what` is its name in messages. DataLoss as of ReadAt.
absl::Status ReadFully(int fd, int64_t offset, size_t count, char* out, const std::string& what);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_RANDOM_ACCESS_FILE_H_
