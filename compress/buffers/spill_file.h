// A file of equal slots for what does not fit in memory. It has no name (O_TMPFILE, or unlinked at
// once), so that nothing is left after a crash; its space is reserved at the start, so that a full
// disk is announced then and not in the middle of a training step.
//
// Thread: any, but no two at the same slot at once.
#ifndef ISTHMUS_COMPRESS_BUFFERS_SPILL_FILE_H_
#define ISTHMUS_COMPRESS_BUFFERS_SPILL_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus::compress {

class SpillFile {
 public:
  // ResourceExhausted: the file system has not the space, says how much is there. NotFound,
  // PermissionDenied: the directory.
  // `before_write`: tests delay writes there, or let them fail.
  using BeforeWrite = std::function<absl::Status(int64_t slot)>;
  static absl::StatusOr<std::unique_ptr<SpillFile>> Make(const std::string& directory,
                                                         int64_t slots, int64_t slot_bytes,
                                                         BeforeWrite before_write = nullptr);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Errors name the directory and what to do.
  absl::Status Read(int64_t slot, void* to) const;
  absl::Status Write(int64_t slot, const void* from);

  int64_t slots() const { return slots_; }
  const std::string& directory() const { return directory_; }

 private:
  SpillFile(int fd, int64_t slots, int64_t slot_bytes, std::string directory,
            BeforeWrite before_write)
      : fd_(fd),
        slots_(slots),
        slot_bytes_(slot_bytes),
        directory_(std::move(directory)),
        before_write_(std::move(before_write)) {}
  absl::Status Failed(const char* doing, int error) const;

  const int fd_;
  const int64_t slots_;
  const int64_t slot_bytes_;
  const std::string directory_;
  const BeforeWrite before_write_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_SPILL_FILE_H_
