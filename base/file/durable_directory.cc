#include "base/file/durable_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/file/tree.h"
#include "base/status.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("can't ", what, " ", path));
}

absl::Status NotEmpty(const std::string& dir) {
  return absl::InvalidArgumentError(absl::StrCat(
      dir, " exists and is not empty: name another directory, or replace it with --force"));
}

absl::Status CheckTarget(const std::string& dir, bool replace) {
  std::error_code error;
  if (!fs::exists(dir, error)) return absl::OkStatus();
  if (!fs::is_directory(dir, error))
    return absl::InvalidArgumentError(absl::StrCat(dir, " is a file; name a directory"));
  return fs::is_empty(dir, error) || replace ? absl::OkStatus() : NotEmpty(dir);
}

}  // namespace

DurableDirectory::DurableDirectory(std::string dir, std::string path, bool replace)
    : dir_(std::move(dir)), path_(std::move(path)), replace_(replace) {}

DurableDirectory::~DurableDirectory() {
  if (!path_.empty()) RemoveTree(path_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<DurableDirectory>> DurableDirectory::Create(
    const std::string& dir_in, bool replace) {
  std::string dir = fs::path(dir_in).lexically_normal().string();
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  RETURN_IF_ERROR(CheckTarget(dir, replace));
  const fs::path parent = fs::path(dir).parent_path();
  std::error_code error;
  if (!parent.empty()) fs::create_directories(parent, error);  // else mkdtemp tells
  std::string name = absl::StrCat(dir, ".part.XXXXXX");
  if (mkdtemp(name.data()) == nullptr) return Errno("make a directory beside", dir);
  return std::unique_ptr<DurableDirectory>(
      new DurableDirectory(std::move(dir), std::move(name), replace));
}

absl::Status DurableDirectory::Commit() {
  std::error_code error;
  fs::permissions(path_,
                  fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                      fs::perms::others_read | fs::perms::others_exec,
                  error);
  RETURN_IF_ERROR(SyncDirectory(path_));
  if (::rename(path_.c_str(), dir_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) return Errno("rename to", dir_);
    if (!replace_) return NotEmpty(dir_);  // somebody filled it meanwhile
    const std::string old = path_ + ".old";
    if (::rename(dir_.c_str(), old.c_str()) != 0) return Errno("replace", dir_);
    if (::rename(path_.c_str(), dir_.c_str()) != 0) {
      const absl::Status status = Errno("rename to", dir_);
      ::rename(old.c_str(), dir_.c_str());
      return status;
    }
    RemoveTree(old).IgnoreError();
  }
  path_.clear();
  return SyncDirectory(fs::path(dir_).parent_path().string());
}

}  // namespace isthmus
