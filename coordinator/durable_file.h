// Files that survive a kill or a power cut: written aside, synced, renamed, the directory synced.
// Thread: any.
#ifndef ISTHMUS_COORDINATOR_DURABLE_FILE_H_
#define ISTHMUS_COORDINATOR_DURABLE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus::coordinator {

absl::Status SyncDirectory(const std::string& dir);
absl::Status WriteFully(int fd, absl::string_view data, const std::string& path);
absl::Status WriteFileDurably(const std::string& path, absl::string_view contents);
// Renames directory `from` to `to`, atomically also if `to` exists; then `from` holds the old one.
absl::Status SwapDirectories(const std::string& from, const std::string& to);
int64_t FreeBytes(const std::string& dir);  // for this user; 0 if unknown

// A file mapped for reading. The pages live as long as the object, also when the file is removed.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  absl::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  MappedFile(void* data, size_t size) : data_(data), size_(size) {}
  void* data_;
  size_t size_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_DURABLE_FILE_H_
