// The single values of a job file: whole numbers also as 1e6; fields ending in _bytes take 256MiB
// or 2GB; fields ending in _share take 5%; true and false; text of at most 4096 bytes.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_JOB_SCALAR_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_JOB_SCALAR_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus::cli {

// Sets the field, or adds to the list, from what the file says. InvalidArgument says what is wrong
// with `text`.
absl::Status SetScalar(const std::string& text, const google::protobuf::FieldDescriptor* field,
                       google::protobuf::Message* message);

// What the field takes: "a whole number".
std::string TypeInWords(const google::protobuf::FieldDescriptor* field);

// `text`, cut where it is too long for a message.
std::string Shown(absl::string_view text);

// The forms of numbers and sizes. InvalidArgument says what is wrong with `text`.
absl::StatusOr<int64_t> ParseWholeNumber(absl::string_view text);
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_JOB_SCALAR_H_
