// A directory that appears whole or not at all: filled beside its place, synced, renamed. Messages
// name the path. Thread: one owner.
#ifndef ISTHMUS_BASE_FILE_DURABLE_DIRECTORY_H_
#define ISTHMUS_BASE_FILE_DURABLE_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace isthmus {

class DurableDirectory {
 public:
  // Makes the directories above `dir`, too. InvalidArgument: `dir` is a file, or it is not empty
  // and `replace` is false; the message names --force.
  static absl::StatusOr<std::unique_ptr<DurableDirectory>> Create(const std::string& dir,
                                                                  bool replace);
  ~DurableDirectory();  // removes what was written, unless Commit succeeded
  DurableDirectory(const DurableDirectory&) = delete;
  DurableDirectory& operator=(const DurableDirectory&) = delete;

  const std::string& path() const { return path_; }  // to write in; each file synced by its writer
  absl::Status Commit();  // once; on an error what was at `dir` is there again

 private:
  DurableDirectory(std::string dir, std::string path, bool replace);
  const std::string dir_;
  std::string path_;  // empty: renamed away
  const bool replace_;
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_DURABLE_DIRECTORY_H_
