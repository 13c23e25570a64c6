// A file without a name: filled, then read in pieces, gone with its object or its process, however
// that ends. Thread: one owner while it is filled; then any.
#ifndef ISTHMUS_BASE_FILE_SCRATCH_FILE_H_
#define ISTHMUS_BASE_FILE_SCRATCH_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file/byte_source.h"

namespace isthmus {

// The descriptor of a new file in `directory`, to read and to write, that has no name there; -1:
// errno says why.
int OpenNameless(const std::string& directory);

class ScratchFile : public ByteSource {
 public:
  // On the file system of `directory`, which is made if it is not there.
  static absl::StatusOr<std::unique_ptr<ScratchFile>> Create(const std::string& directory);
  ~ScratchFile() override;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // ResourceExhausted: the disk is full; the message names the directory.
  absl::Status Append(absl::string_view data);

  int64_t bytes() const override { return bytes_; }
  absl::Status ReadAt(int64_t offset, size_t count, char* out) const override;

 private:
  ScratchFile(std::string directory, int fd) : directory_(std::move(directory)), fd_(fd) {}
  const std::string directory_;
  const int fd_;
  int64_t bytes_ = 0;
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_SCRATCH_FILE_H_
