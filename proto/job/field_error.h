// What is wrong with one field of a job: a status whose message says all of it, "recipe.steps: '0'
// is not allowed; it must be from 1 to 100", and whose payloads are its parts, so that no program
// reads words. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_FIELD_ERROR_H_
#define ISTHMUS_PROTO_JOB_FIELD_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace isthmus {

// The parts. A status that is none of a field's has an empty `field`, and all of its words in
// `what`.
struct FieldFault {
  std::string field;    // its path, "recipe.steps"
  std::string what;     // the words behind it
  std::string allowed;  // what the value must be, of a ValueError; "" of others
};

// InvalidArgument "FIELD: WHAT".
absl::Status FieldError(absl::string_view field, absl::string_view what);

// InvalidArgument "FIELD: WHATit must be ALLOWED": a field that is left out must be that, too.
absl::Status ValueError(absl::string_view field, absl::string_view what, absl::string_view allowed);

// InvalidArgument "FIELD: 'VALUE' is not allowed; it must be ALLOWED".
template <typename T>
absl::Status NotAllowed(absl::string_view field, const T& value, absl::string_view allowed) {
  return ValueError(field, absl::StrCat("'", value, "' is not allowed; "), allowed);
}

FieldFault FaultOf(const absl::Status& error);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_FIELD_ERROR_H_
