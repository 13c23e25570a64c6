#include "base/file/tree.h"

#include <fts.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

using Tree = std::unique_ptr<FTS, int (*)(FTS*)>;

Tree Open(std::string path) {
  char* const roots[] = {&path[0], nullptr};
  return Tree(fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, nullptr), &fts_close);
}

}  // namespace

absl::Status RemoveTree(const std::string& path) {
  const Tree tree = Open(path);
  if (tree == nullptr) {
    if (errno == ENOENT) return absl::OkStatus();  // an empty path
    return absl::ErrnoToStatus(errno, absl::StrCat("removing ", path));
  }
  absl::Status first;
  while (const FTSENT* entry = fts_read(tree.get())) {
    int error = 0;
    switch (entry->fts_info) {
      case FTS_D:
        continue;  // after what is in it
      case FTS_DP:
        error = rmdir(entry->fts_accpath) == 0 ? 0 : errno;
        break;
      case FTS_DNR:
      case FTS_ERR:
      case FTS_NS:
        error = entry->fts_errno;
        break;
      default:
        error = unlink(entry->fts_accpath) == 0 ? 0 : errno;
    }
    if (error != 0 && error != ENOENT && first.ok())
      first = absl::ErrnoToStatus(error, absl::StrCat("removing ", entry->fts_path));
  }
  return first;
}

int64_t TreeBytes(const std::string& path) {
  const Tree tree = Open(path);
  int64_t bytes = 0;
  while (const FTSENT* entry = tree != nullptr ? fts_read(tree.get()) : nullptr)
    if (entry->fts_info == FTS_F) bytes += entry->fts_statp->st_size;
  return bytes;
}

}  // namespace isthmus
