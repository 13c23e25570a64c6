#include "base/file/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus {
namespace {

absl::Status Errno(absl::string_view what, const std::string& path) {
  const int code = errno;
  if (code == ENOSPC || code == EDQUOT)
    return absl::ResourceExhaustedError(absl::StrCat(what, " ", path, ": the disk is full"));
  return absl::ErrnoToStatus(code, absl::StrCat(what, " ", path));
}

absl::Status Sync(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) return Errno("opening", path);
  const absl::Status synced = ::fsync(fd) == 0 ? absl::OkStatus() : Errno("syncing", path);
  ::close(fd);
  return synced;
}

std::string ParentOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

absl::Status SyncFile(const std::string& path) { return Sync(path, 0); }

absl::Status SyncDirectory(const std::string& path) {
  return Sync(path.empty() ? "." : path, O_DIRECTORY);
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

DurableFile::DurableFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

absl::StatusOr<std::unique_ptr<DurableFile>> DurableFile::Create(const std::string& path,
                                                                 const std::string& suffix,
                                                                 int mode) {
  std::string temporary = path + suffix;
  // What lies there is of a process that was killed; a link or a FIFO there is not written through.
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return Errno("making", temporary);
  return std::unique_ptr<DurableFile>(new DurableFile(path, std::move(temporary), fd));
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

absl::Status DurableFile::Append(absl::string_view data) {
  RETURN_IF_ERROR(WriteFully(fd_, data, temporary_));
  bytes_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::Status DurableFile::Commit() { return CommitAs(path_); }

absl::Status DurableFile::CommitAs(const std::string& path) {
  if (::fsync(fd_) != 0) return Errno("syncing", temporary_);
  RETURN_IF_ERROR(CommitUnsyncedAs(path));
  return SyncDirectory(ParentOf(path));
}

absl::Status DurableFile::CommitUnsyncedAs(const std::string& path) {
  if (::rename(temporary_.c_str(), path.c_str()) != 0) return Errno("renaming to", path);
  ::close(std::exchange(fd_, -1));
  return absl::OkStatus();
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view contents, int mode) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DurableFile> file,
                   DurableFile::Create(path, ".tmp", mode));
  RETURN_IF_ERROR(file->Append(contents));
  return file->Commit();
}

absl::Status SwapDirectories(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!std::filesystem::exists(to, error)) {
    if (::rename(from.c_str(), to.c_str()) != 0) return Errno("renaming to", to);
  } else if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    return Errno("exchanging with", to);
  }
  return SyncDirectory(ParentOf(to));
}

int64_t FreeBytes(const std::string& dir) {
  struct statvfs info;
  if (::statvfs(dir.c_str(), &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace isthmus
