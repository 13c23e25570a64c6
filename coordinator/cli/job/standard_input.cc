#include "coordinator/cli/job/standard_input.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::cli {
namespace {

constexpr size_t kReadBytes = 64 << 10;

absl::Status Error(const char* what) {
  return absl::NotFoundError(absl::StrCat(what, " standard input: ", std::strerror(errno)));
}

absl::Status PutBack(const std::string& text) {
  const int fd = memfd_create("isthmus-stdin", MFD_CLOEXEC);
  if (fd < 0) return Error("can't keep");
  bool good = true;
  for (size_t done = 0; good && done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    good = n > 0;
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  good = good && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO;
  const absl::Status status = good ? absl::OkStatus() : Error("can't keep");
  if (fd != STDIN_FILENO) close(fd);
  return status;
}

}  // namespace

absl::StatusOr<std::string> ReadStandardInput(size_t most) {
  std::string text;
  std::string block(kReadBytes, '\0');
  while (text.size() < most) {
    const ssize_t n = read(STDIN_FILENO, block.data(), std::min(block.size(), most - text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error("can't read");
    if (n == 0) break;
    text.append(block, 0, static_cast<size_t>(n));
  }
  RETURN_IF_ERROR(PutBack(text));
  return text;
}

}  // namespace isthmus::cli
