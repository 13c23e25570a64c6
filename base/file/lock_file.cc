#include "base/file/lock_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace isthmus {

absl::StatusOr<int> OpenLockFile(const std::string& path, mode_t mode) {
  struct stat info = {};
  // O_NONBLOCK: a FIFO would wait for its other end.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode);
  const int error = errno;
  const bool known = fd >= 0 ? ::fstat(fd, &info) == 0 : ::lstat(path.c_str(), &info) == 0;
  if (known && !S_ISREG(info.st_mode)) {
    if (fd >= 0) ::close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ",
                     S_ISLNK(info.st_mode)    ? "a symbolic link"
                     : S_ISDIR(info.st_mode)  ? "a directory"
                     : S_ISFIFO(info.st_mode) ? "a FIFO"
                                              : "no regular file",
                     ", and has to be a file that this program makes: remove it"));
  }
  if (fd < 0) return absl::ErrnoToStatus(error, absl::StrCat("opening ", path));
  return fd;
}

}  // namespace isthmus
