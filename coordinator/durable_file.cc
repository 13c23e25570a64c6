#include "coordinator/durable_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::coordinator {
namespace {

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int code = errno;
  if (code == ENOSPC || code == EDQUOT)
    return absl::ResourceExhaustedError(absl::StrCat(what, " ", path, ": the disk is full"));
  return absl::ErrnoToStatus(code, absl::StrCat(what, " ", path));
}

}  // namespace

absl::Status SyncDirectory(const std::string& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Errno("opening", dir);
  const int result = ::fsync(fd);
  ::close(fd);
  return result == 0 ? absl::OkStatus() : Errno("syncing", dir);
}

absl::Status WriteFully(int fd, absl::string_view data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("writing", path);
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view contents) {
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("making", temporary);
  absl::Status written = WriteFully(fd, contents, temporary);
  if (written.ok() && ::fsync(fd) != 0) written = Errno("syncing", temporary);
  ::close(fd);
  RETURN_IF_ERROR(written);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return Errno("renaming to", path);
  return SyncDirectory(std::filesystem::path(path).parent_path().string());
}

absl::Status SwapDirectories(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!std::filesystem::exists(to, error)) {
    if (::rename(from.c_str(), to.c_str()) != 0) return Errno("renaming to", to);
  } else if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    return Errno("exchanging with", to);
  }
  return SyncDirectory(std::filesystem::path(to).parent_path().string());
}

int64_t FreeBytes(const std::string& dir) {
  struct statvfs info;
  if (::statvfs(dir.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would block
  if (fd < 0) return Errno("opening", path);
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    ::close(fd);
    return Errno("looking at", path);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (size != 0 && data == MAP_FAILED) return Errno("mapping", path);
  return MappedFile(data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : data_(other.data_), size_(other.size_) {
  other.data_ = nullptr;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace isthmus::coordinator
