#include "compress/buffers/spill_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/cure.h"
#include "base/file/scratch_file.h"
#include "base/status.h"

namespace isthmus::compress {
namespace {

// Reserves, or where the file system can't, checks the free space and sets the length.
int Reserve(int fd, int64_t bytes, int64_t* available) {
  struct statvfs vfs;
  *available = fstatvfs(fd, &vfs) == 0
                   ? static_cast<int64_t>(vfs.f_bavail) * static_cast<int64_t>(vfs.f_frsize)
                   : -1;
  if (fallocate(fd, 0, 0, bytes) == 0) return 0;
  if (errno != EOPNOTSUPP) return errno;
  if (*available >= 0 && *available < bytes) return ENOSPC;
  return ftruncate(fd, bytes) == 0 ? 0 : errno;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpillFile>> SpillFile::Make(const std::string& directory,
                                                           int64_t slots, int64_t slot_bytes,
                                                           BeforeWrite before_write) {
  const int fd = OpenNameless(directory);
  if (fd < 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("spill file in '", directory, "' (--state-dir of the daemon)"));
  }
  std::unique_ptr<SpillFile> file(
      new SpillFile(fd, slots, slot_bytes, directory, std::move(before_write)));
  const int64_t bytes = slots * slot_bytes;
  int64_t available = 0;
  const int error = bytes > 0 ? Reserve(fd, bytes, &available) : 0;
  if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
    return WithCure(absl::ResourceExhaustedError(
        absl::StrCat("delta buffers want ", bytes, " bytes in '", directory, "', where ", available,
                     " are free: free some, or lower the disk cap of the buffers")));
  }
  if (error != 0)
    return absl::ErrnoToStatus(error,
                               absl::StrCat("reserving ", bytes, " bytes in '", directory, "'"));
  return file;
}

SpillFile::~SpillFile() { close(fd_); }

absl::Status SpillFile::Failed(const char* doing, int error) const {
  return WithCure(absl::ErrnoToStatus(
      error, absl::StrCat(doing, " the spill file of delta buffers in '", directory_,
                          "': check that disk and its free space, or keep the buffers in memory "
                          "(compression.buffer_disk_bytes: 0)")));
}

absl::Status SpillFile::Read(int64_t slot, void* to) const {
  char* p = static_cast<char*>(to);
  int64_t left = slot_bytes_;
  int64_t at = slot * slot_bytes_;
  while (left > 0) {
    const ssize_t n = pread(fd_, p, static_cast<size_t>(left), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("reading", n < 0 ? errno : EIO);
    p += n;
    at += n;
    left -= n;
  }
  return absl::OkStatus();
}

absl::Status SpillFile::Write(int64_t slot, const void* from) {
  if (before_write_) RETURN_IF_ERROR(before_write_(slot));
  const char* p = static_cast<const char*>(from);
  int64_t left = slot_bytes_;
  int64_t at = slot * slot_bytes_;
  while (left > 0) {
    const ssize_t n = pwrite(fd_, p, static_cast<size_t>(left), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("writing", n < 0 ? errno : EIO);
    p += n;
    at += n;
    left -= n;
  }
  return absl::OkStatus();
}

}  // namespace isthmus::compress
