#include "daemon/state/identity.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file/durable_file.h"
#include "base/file/lock_file.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kIdDigits = 32;

bool IsId(const std::string& text) {
  return text.size() == kIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

}  // namespace

std::string RandomId() {
  std::random_device device;
  std::string id;
  while (id.size() < kIdDigits) absl::StrAppendFormat(&id, "%08x", device());
  return id;
}

StateDir::StateDir(StateDir&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

StateDir::~StateDir() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::StatusOr<StateDir> StateDir::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return absl::PermissionDeniedError(absl::StrCat("--state-dir ", path, ": ", error.message()));
  const std::string lock_path = absl::StrCat(path, "/lock");
  const absl::StatusOr<int> opened = OpenLockFile(lock_path, 0600);
  if (!opened.ok()) return Annotate(opened.status(), "--state-dir");
  const int fd = *opened;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char owner[32] = {};
    const ssize_t got = pread(fd, owner, sizeof(owner) - 1, 0);
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat(
        "--state-dir ", path, " is in use by another daemon",
        got > 0 ? absl::StrCat(" (process ", absl::StripAsciiWhitespace(owner), ")") : "",
        ": give this one a directory of its own"));
  }
  const std::string mine = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    const absl::Status status = Errno("--state-dir: can't write", lock_path);
    close(fd);
    return status;
  }
  return StateDir(path, fd);
}

absl::StatusOr<std::string> StateDir::NodeId() const {
  const std::string file = absl::StrCat(path_, "/node-id");
  std::error_code error;
  const auto kind = std::filesystem::status(file, error).type();
  if (kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular)
    return absl::DataLossError(absl::StrCat(file, " is not a regular file: delete it"));
  std::ifstream in(file);
  if (in) {
    std::string id;
    in >> id;
    if (IsId(id)) return id;
    return absl::DataLossError(absl::StrCat(
        file,
        " holds no identity (32 hexadecimal digits): restore it, or delete it to get a new one"));
  }
  const std::string id = RandomId();
  const absl::Status status = WriteFileDurably(file, id + "\n", 0600);
  if (!status.ok()) return status;
  return id;
}

}  // namespace isthmus::daemon
