// Files that are read whole because they are small: configurations, jobs, tokenizers. Memory is
// bounded by the limit given. Thread: any.
#ifndef ISTHMUS_BASE_FILE_READ_FILE_H_
#define ISTHMUS_BASE_FILE_READ_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace isthmus {

// Its contents. Messages name the path. NotFound: it can't be opened or read. InvalidArgument: it
// is not a regular file (to open a pipe would wait for its writer), or has more than `most` bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t most);

// The same, but of a longer file its first `most` bytes.
absl::StatusOr<std::string> ReadFileHead(const std::string& path, int64_t most);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_READ_FILE_H_
