#include "coordinator/store/state_lock.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file/lock_file.h"
#include "base/status.h"

namespace isthmus::coordinator {

StateLock::~StateLock() { ::close(fd_); }

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Take(const std::string& state_dir) {
  std::error_code error;
  std::filesystem::create_directories(state_dir, error);
  if (error)
    return absl::PermissionDeniedError(
        absl::StrCat("--state-dir ", state_dir, ": cannot be made: ", error.message()));
  const std::string path = state_dir + "/lock";
  const absl::StatusOr<int> opened = OpenLockFile(path, 0644);
  if (!opened.ok()) return Annotate(opened.status(), "--state-dir");
  const int fd = *opened;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    const ssize_t n = ::pread(fd, pid, sizeof(pid) - 1, 0);
    ::close(fd);
    return absl::AlreadyExistsError(
        absl::StrCat("--state-dir ", state_dir, " is in use by process ",
                     n > 0 ? absl::StripSuffix(pid, "\n") : "(unknown)",
                     ": stop that coordinator, or give this one a directory of its own"));
  }
  const std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const int code = errno;
    ::close(fd);
    return absl::ErrnoToStatus(code, absl::StrCat("--state-dir: writing ", path));
  }
  return std::unique_ptr<StateLock>(new StateLock(fd));
}

}  // namespace isthmus::coordinator
