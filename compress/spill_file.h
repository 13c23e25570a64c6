// A file of equal slots for what does not fit in memory. It has no name (O_TMPFILE, or unlinked at
// once), so that nothing is left after a crash; its space is reserved at the start, so that a full
// disk is announced then and not in the middle of a training step.
//
// Thread: one owner.
#ifndef ISTHMUS_COMPRESS_SPILL_FILE_H_
#define ISTHMUS_COMPRESS_SPILL_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus::compress {

class SpillFile {
 public:
  // ResourceExhausted: the file system has not the space, says how much is there. NotFound,
  // PermissionDenied: the directory.
  static absl::StatusOr<std::unique_ptr<SpillFile>> Make(const std::string& directory,
                                                         int64_t slots, int64_t slot_bytes);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  absl::Status Read(int64_t slot, void* to) const;
  absl::Status Write(int64_t slot, const void* from);
  // Starts reading the slot into the page cache; returns at once.
  void Prefetch(int64_t slot) const;

  int64_t slots() const { return slots_; }

 private:
  SpillFile(int fd, int64_t slots, int64_t slot_bytes, std::string directory)
      : fd_(fd), slots_(slots), slot_bytes_(slot_bytes), directory_(std::move(directory)) {}

  const int fd_;
  const int64_t slots_;
  const int64_t slot_bytes_;
  const std::string directory_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_SPILL_FILE_H_
