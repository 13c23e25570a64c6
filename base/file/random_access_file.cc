#include "base/file/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus {

RandomAccessFile::RandomAccessFile(std::string path, int fd, int64_t bytes)
    : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

RandomAccessFile::~RandomAccessFile() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<RandomAccessFile> RandomAccessFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would block
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  RandomAccessFile file(path, fd, 0);
  struct stat info;
  if (::fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("looking at ", path));
  if (!S_ISREG(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  file.bytes_ = static_cast<int64_t>(info.st_size);
  return file;
}

absl::Status RandomAccessFile::ReadAt(int64_t offset, size_t count, char* out) const {
  return ReadFully(fd_, offset, count, out, path_);
}

absl::Status ReadFully(int fd, int64_t offset, size_t count, char* out, const std::string& what) {
  while (count > 0) {
    const ssize_t n = ::pread(fd, out, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::DataLossError(
          absl::StrCat("byte ", offset, " of ", what, " can't be read: ", std::strerror(errno)));
    if (n == 0)
      return absl::DataLossError(absl::StrCat(what, " ends at byte ", offset, " of ",
                                              offset + static_cast<int64_t>(count),
                                              " that it had when it was opened"));
    offset += n;
    out += n;
    count -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace isthmus
