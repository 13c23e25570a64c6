#include "worker/data/watched_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cure.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::worker {

absl::StatusOr<std::unique_ptr<WatchedFile>> WatchedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would block
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat start;
  if (::fstat(fd, &start) != 0 || !S_ISREG(start.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return std::unique_ptr<WatchedFile>(new WatchedFile(path, fd, start));
}

WatchedFile::WatchedFile(std::string path, int fd, const struct stat& start)
    : path_(std::move(path)), fd_(fd), start_(start) {
  while ((bytes() + block_bytes_ - 1) / block_bytes_ > kMaxBlocks) block_bytes_ *= 2;
  const int64_t blocks = (bytes() + block_bytes_ - 1) / block_bytes_;
  hashes_ = std::make_unique<std::atomic<uint64_t>[]>(blocks);
}

WatchedFile::~WatchedFile() { ::close(fd_); }

absl::Status WatchedFile::Read(int64_t offset, int64_t bytes, char* out) const {
  const int64_t end = offset + bytes;
  ISTHMUS_CHECK(offset >= 0 && bytes >= 0 && end <= this->bytes());
  const std::unique_ptr<char[]> buffer(new char[block_bytes_]);
  for (int64_t block = offset / block_bytes_; block * block_bytes_ < end; ++block) {
    const int64_t begin = block * block_bytes_;
    const int64_t length = std::min(block_bytes_, this->bytes() - begin);
    RETURN_IF_ERROR(ReadBlock(block, length, buffer.get()));
    const int64_t from = std::max(begin, offset), to = std::min(begin + length, end);
    std::memcpy(out + (from - offset), buffer.get() + (from - begin), to - from);
  }
  return absl::OkStatus();
}

absl::Status WatchedFile::ReadBlock(int64_t block, int64_t bytes, char* out) const {
  const int64_t begin = block * block_bytes_;
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, out + done, bytes - done, begin + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::InternalError(absl::StrCat("cannot read ", path_, " at offset ", begin + done,
                                              ": ", std::strerror(errno)));
    if (n == 0) {
      struct stat now = start_;
      ::fstat(fd_, &now);
      return Changed(absl::StrCat("it had ", start_.st_size, " bytes at the start and has ",
                                  now.st_size, " now"));
    }
    done += n;
  }
  const uint64_t hash = std::max<uint64_t>(1, Hash64(out, bytes));
  uint64_t first = 0;
  if (hashes_[block].load(std::memory_order_relaxed) == 0) {
    RETURN_IF_ERROR(CheckUnchanged());
    if (hashes_[block].compare_exchange_strong(first, hash, std::memory_order_relaxed))
      return absl::OkStatus();
  }
  if (hashes_[block].load(std::memory_order_relaxed) == hash) return absl::OkStatus();
  return Changed(
      absl::StrCat("its bytes ", begin, " to ", begin + bytes, " are not those of the start"));
}

absl::Status WatchedFile::CheckUnchanged() const {
  struct stat now;
  if (::fstat(fd_, &now) != 0)
    return absl::InternalError(absl::StrCat("cannot look at ", path_, ": ", std::strerror(errno)));
  if (now.st_size == start_.st_size && now.st_ctim.tv_sec == start_.st_ctim.tv_sec &&
      now.st_ctim.tv_nsec == start_.st_ctim.tv_nsec)
    return absl::OkStatus();
  return Changed(now.st_size != start_.st_size
                     ? absl::StrCat("it had ", start_.st_size, " bytes at the start and has ",
                                    now.st_size, " now")
                     : "its change time is not that of the start, and this part of it was not "
                       "read before");
}

absl::Status WatchedFile::Changed(const std::string& what) const {
  return WithCure(absl::FailedPreconditionError(
      absl::StrCat(path_, " was changed while it was in use: ", what,
                   ". Nothing of the change was trained on. Put the former file back in its place "
                   "(new data belong into a new file)")));
}

}  // namespace isthmus::worker
