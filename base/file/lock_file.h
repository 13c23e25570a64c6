// The file of a directory that a running program keeps locked (flock), so that no other takes it.
// Thread: pure functions.
#ifndef ISTHMUS_BASE_FILE_LOCK_FILE_H_
#define ISTHMUS_BASE_FILE_LOCK_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace isthmus {

// Opens `path` for reading and writing and makes it where it is missing. The caller closes it.
// InvalidArgument: something else has that name (a link, a directory, a FIFO), and what to do.
absl::StatusOr<int> OpenLockFile(const std::string& path, mode_t mode);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_LOCK_FILE_H_
