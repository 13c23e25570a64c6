#include "base/file/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/file/random_access_file.h"
#include "base/status.h"

namespace isthmus {

int OpenNameless(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = directory + "/isthmus-spill-XXXXXX";  // a file system without O_TMPFILE
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

absl::StatusOr<std::unique_ptr<ScratchFile>> ScratchFile::Create(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("can't make ", directory, ": ", error.message()));
  const int fd = OpenNameless(directory);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("making a file in ", directory));
  return std::unique_ptr<ScratchFile>(new ScratchFile(directory, fd));
}

ScratchFile::~ScratchFile() { ::close(fd_); }

absl::Status ScratchFile::Append(absl::string_view data) {
  RETURN_IF_ERROR(WriteFully(fd_, data, absl::StrCat("a file in ", directory_)));
  bytes_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::Status ScratchFile::ReadAt(int64_t offset, size_t count, char* out) const {
  return ReadFully(fd_, offset, count, out, absl::StrCat("a file in ", directory_));
}

}  // namespace isthmus
