// Directories with all that is in them. By the system's own calls, not std::filesystem: LibTorch's
// wheels export one of another compiler's library, and a program that links them dies where classes
// of both meet (isthmusd did at its third checkpoint). Links are not followed. Thread: any.
#ifndef ISTHMUS_BASE_FILE_TREE_H_
#define ISTHMUS_BASE_FILE_TREE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace isthmus {

// A file, or a directory with all in it. OK where nothing is there. Else the first error, which
// names the path; what else could be removed has been.
absl::Status RemoveTree(const std::string& path);

// Of all regular files below it; 0 where nothing is there.
int64_t TreeBytes(const std::string& path);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_TREE_H_
