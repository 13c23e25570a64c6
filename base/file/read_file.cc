#include "base/file/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus {
namespace {

constexpr int64_t kBlockBytes = int64_t{64} << 10;

absl::Status CantRead(const std::string& path, int error) {
  return absl::NotFoundError(absl::StrCat("can't read ", path, ": ", std::strerror(error)));
}

absl::Status CheckRegular(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return CantRead(path, errno);
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("can't read ", path, ": it is ",
                   S_ISDIR(info.st_mode) ? "a directory" : "not a regular file"));
}

absl::StatusOr<std::string> ReadOpened(int fd, const std::string& path, int64_t most) {
  RETURN_IF_ERROR(CheckRegular(fd, path));
  std::string text;
  while (static_cast<int64_t>(text.size()) < most) {
    const size_t before = text.size();
    text.resize(before +
                static_cast<size_t>(std::min(kBlockBytes, most - static_cast<int64_t>(before))));
    const ssize_t n = ::read(fd, &text[before], text.size() - before);
    const int error = errno;
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && error != EINTR) return CantRead(path, error);
    if (n == 0) break;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadFileHead(const std::string& path, int64_t most) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would block
  if (fd < 0) return CantRead(path, errno);
  absl::StatusOr<std::string> text = ReadOpened(fd, path, most);
  ::close(fd);
  return text;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t most) {
  ASSIGN_OR_RETURN(std::string text, ReadFileHead(path, most + 1));
  if (static_cast<int64_t>(text.size()) <= most) return text;
  return absl::InvalidArgumentError(absl::StrCat("can't read ", path, ": it has more than ", most,
                                                 " bytes, the most that such a file has"));
}

}  // namespace isthmus
