// What `isthmus help job` and `isthmus job-template` print: every field of a job with type, default
// and meaning. The source is the comments of proto/job.proto, whose text CMake puts into the
// program. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_JOB_REFERENCE_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_JOB_REFERENCE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus::cli {

extern const char kJobProtoText[];

struct FieldDoc {
  std::string path;  // "recipe.learning_rate", "compression.boundaries[].forward"
  std::string type;  // whole number, number, text, true|false, size, list of ..., section
  std::string
      default_value;    // as the comment's last [brackets] say; "required" where there are none
  std::string meaning;  // the comment without the brackets; may be empty
};

// In the order of job.proto, sections before their fields.
std::vector<FieldDoc> JobFieldDocs();

std::string JobReference();

// A complete job: required fields with example values, optional ones commented out with their
// defaults.
std::string JobTemplate();

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_JOB_REFERENCE_H_
