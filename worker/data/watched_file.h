// A data file that has to stay as it was when it was opened. It is read block by block with pread,
// never mapped (another program that cuts a mapped file off ends this process), and each block is
// compared with the hash of its first read: bytes that have changed are never handed out.
//
// A block that was not read before counts as what was there at the start only while the file's size
// and change time are those of the start. Growth at the end and a file that a rename puts into this
// one's place change nothing: what was opened is read on. Memory: 8 bytes a block, kMaxBlocks at
// most. Thread: const methods from any thread.
#ifndef ISTHMUS_WORKER_DATA_WATCHED_FILE_H_
#define ISTHMUS_WORKER_DATA_WATCHED_FILE_H_

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus::worker {

class WatchedFile {
 public:
  static constexpr int64_t kBlockBytes = 16 << 10;         // read and hashed at once ...
  static constexpr int64_t kMaxBlocks = int64_t{1} << 21;  // ... larger ones beyond 32 GiB

  // NotFound, PermissionDenied and their kin name the path; InvalidArgument: not a regular file.
  static absl::StatusOr<std::unique_ptr<WatchedFile>> Open(const std::string& path);
  ~WatchedFile();
  WatchedFile(const WatchedFile&) = delete;
  WatchedFile& operator=(const WatchedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return start_.st_size; }  // when it was opened

  // Bytes [offset, offset + bytes) of the start. FailedPrecondition: the file was changed; in
  // words, with what to do. Internal: the system could not read it.
  absl::Status Read(int64_t offset, int64_t bytes, char* out) const;

 private:
  WatchedFile(std::string path, int fd, const struct stat& start);
  absl::Status ReadBlock(int64_t block, int64_t bytes, char* out) const;
  absl::Status CheckUnchanged() const;
  absl::Status Changed(const std::string& what) const;

  const std::string path_;
  const int fd_;
  const struct stat start_;
  int64_t block_bytes_ = kBlockBytes;
  std::unique_ptr<std::atomic<uint64_t>[]> hashes_;  // by block; 0: not read yet
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_DATA_WATCHED_FILE_H_
