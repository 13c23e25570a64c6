// Names out of messages of other hosts that become names of files. Thread: pure functions.
#ifndef ISTHMUS_BASE_FILE_FILE_NAME_H_
#define ISTHMUS_BASE_FILE_FILE_NAME_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace isthmus {

constexpr size_t kMaxFileNameBytes = 128;

// Letters, digits, '-', '_' and '.', the first one no '.': a file or directory in its place and
// nowhere else.
bool IsFileName(absl::string_view name);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_FILE_FILE_NAME_H_
