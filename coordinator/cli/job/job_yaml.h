// YAML job files, mapped strictly onto JobSpec by reflection: keys are field names, sections are
// messages. An unknown or repeated key, a wrong type or a bad value is refused with
// file:line:column, the field's path and, where there is one, the nearest valid key. All errors of
// a file are reported, up to kMaxJobErrors, and how many more there are.
//
// Values: scalars as in job_scalar.h; text plain or in quotes; lists as [1, 2] or with dashes.
//
// Thread: pure functions; ReadJobText and ReadJobFile read a file.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_JOB_YAML_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_JOB_YAML_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
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
  std::string flag;  // "--set recipe.steps=10" instead of a place in the file
};

// "job.yaml:12:3: recipe.learning_rate: message"; of a flag "--set recipe.steps=ten: message"
std::string FormatJobFileError(absl::string_view file, const JobFileError& error);

// "and 3 more errors"; "" for none.
std::string MoreErrors(size_t more);

struct JobFile {
  JobSpec job;                                 // defaults filled in; complete only without errors
  std::vector<JobFileError> errors;            // in the order of the file, kMaxJobErrors at most
  size_t more_errors = 0;                      // that are left out there
  std::map<std::string, JobFileError> places;  // of each field given, without a message
};

// What --set says, "PATH=VALUE" each: the path of a field or of a section, the value as in a job
// file. They are mapped after the file and as strictly; a list replaces the file's.
using JobSettings = std::vector<std::string>;

JobFile ParseJobYaml(absl::string_view text, const JobSettings& settings = {});

// A job file as a command line names it.
struct JobSource {
  JobSource() = default;
  JobSource(std::string path) : file(std::move(path)) {}  // NOLINT: a path is one
  JobSource(const char* path) : file(path) {}             // NOLINT
  std::string file;  // "-": standard input, which stays readable (standard_input.h)
  JobSettings settings;
};

// What messages call the file.
std::string JobFileName(const JobSource& source);
// Its text, at most kMaxYamlBytes + 1. NotFound: it can't be read; InvalidArgument: it is not a
// regular file.
absl::StatusOr<std::string> ReadJobText(const JobSource& source);

// A model.init_from that is relative starts at the file's directory. It is made absolute, so that
// an export from elsewhere on this machine finds what lies there.
void ResolveInitFrom(const JobSource& source, JobSpec* job);

// With ResolveInitFrom. NotFound or InvalidArgument; the message has every error, a line each.
absl::StatusOr<JobSpec> ReadJobFile(const JobSource& source);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_JOB_YAML_H_
