// YAML job files, mapped strictly onto JobSpec by reflection: keys are field names, sections are
// messages. An unknown or repeated key, a wrong type or a bad value is refused with
// file:line:column, the field's path and, where there is one, the nearest valid key. All errors of
// a file are reported, up to kMaxJobErrors.
//
// Values: whole numbers also as 1e6; fields ending in _bytes take 256MiB or 2GB; fields ending in
// _share take 5%; true and false; text plain or in quotes; lists as [1, 2] or with dashes.
//
// Thread: pure functions; ReadJobFile reads a file.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_YAML_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_YAML_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace isthmus::cli {

constexpr size_t kMaxJobErrors = 20;

struct JobFileError {
  int line = 1;
  int column = 1;
  std::string path;  // "recipe.learning_rate"; empty: the whole file
  std::string message;
};

// "job.yaml:12:3: recipe.learning_rate: message"
std::string FormatJobFileError(absl::string_view file, const JobFileError& error);

struct JobFile {
  JobSpec job;                       // defaults filled in; complete only without errors
  std::vector<JobFileError> errors;  // in the order of the file
};

JobFile ParseJobYaml(absl::string_view text);

// NotFound or InvalidArgument; the message has every error, a line each.
absl::StatusOr<JobSpec> ReadJobFile(const std::string& path);

// The scalar forms above. InvalidArgument says what is wrong with `text`.
absl::StatusOr<int64_t> ParseWholeNumber(absl::string_view text);
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_YAML_H_
