// Files that survive a kill or a power cut: written aside, synced, renamed, the directory synced.
// The one place where that is done. A full disk is ResourceExhausted, every other refusal of the
// system the Status of its errno; messages name the path. Thread: any; a DurableFile has one owner.
#ifndef ISTHMUS_BASE_FILE_DURABLE_FILE_H_
#define ISTHMUS_BASE_FILE_DURABLE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

// A file that appears at `path` whole, with Commit, or not at all. Until then its bytes are in
// `path` + `suffix`, which the destructor removes.
class DurableFile {
 public:
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(const std::string& path,
                                                             const std::string& suffix = ".tmp",
                                                             int mode = 0644);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  absl::Status Append(absl::string_view data);
  absl::Status Commit();  // once; on an error the file at `path` is what it was
  // As Commit, at another path of the same directory: one that its contents name.
  absl::Status CommitAs(const std::string& path);
  // The same without a wait for the disk: it survives a kill of the process; after a power cut it
  // may be cut short or be of zeros, which whoever reads it has to find out.
  absl::Status CommitUnsyncedAs(const std::string& path);
  int64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1 after Commit

 private:
  DurableFile(std::string path, std::string temporary, int fd);
  const std::string path_;
  const std::string temporary_;
  int fd_;
  int64_t bytes_ = 0;
};

absl::Status WriteFileDurably(const std::string& path, absl::string_view contents, int mode = 0644);
absl::Status WriteFully(int fd, absl::string_view data, const std::string& path);
absl::Status SyncFile(const std::string& path);  // its contents
absl::Status SyncDirectory(
    const std::string& path);  // the names in it; "" is the working directory
// Renames directory `from` to `to`, atomically also if `to` exists; then `from` holds the old one.
absl::Status SwapDirectories(const std::string& from, const std::string& to);
int64_t FreeBytes(const std::string& dir);  // for this user; 0 if unknown

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_DURABLE_FILE_H_
