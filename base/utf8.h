// Strings that come from the system (names of files and hosts, flags, environment, errors in words)
// may be of any encoding; protobuf's string fields hold UTF-8 alone, and a message with another
// one is refused by who receives it. Thread: pure functions.
#ifndef ISTHMUS_BASE_UTF8_H_
#define ISTHMUS_BASE_UTF8_H_

#include <string>

#include "absl/strings/string_view.h"

namespace isthmus {

bool IsUtf8(absl::string_view text);

// `text` with U+FFFD for each byte that belongs to no character.
std::string ToUtf8(absl::string_view text);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_UTF8_H_
