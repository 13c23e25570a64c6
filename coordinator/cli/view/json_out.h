// Messages as JSON, for --json: snake_case names as in the .proto files, every field present (unset
// sections as null), enums as lower-case words without JOB_ ("finished", as in texts and metrics),
// `bool forward` as "direction": "forward" or "backward", all numbers (64-bit ones too) as JSON
// numbers, numbers that are not finite as null. Names and meanings are stable; new fields may be
// added. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_JSON_OUT_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_JSON_OUT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace isthmus::cli {

// Pretty: indented by two spaces, ending in '\n'. Otherwise one line without it.
std::string ToJson(const google::protobuf::Message& message, bool pretty);

// A quoted JSON string. Bytes that are not UTF-8 become U+FFFD.
std::string JsonString(absl::string_view text);

// The shortest text that reads back as `value`; "null" if it is not finite.
std::string JsonNumber(double value);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_JSON_OUT_H_
