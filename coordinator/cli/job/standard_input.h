// Standard input as a file that can be read again: "-" where a job file is named. Thread: the main
// thread, before others start.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_STANDARD_INPUT_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_STANDARD_INPUT_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace isthmus::cli {

// The path that stands for standard input, and how messages call it.
inline constexpr char kStandardInput[] = "-";
inline constexpr char kStandardInputName[] = "<stdin>";

// All of it, or its first `most` bytes. What was read is put back, as a file in memory in the place
// of standard input, so that a second call and programs that this one starts read the same again.
absl::StatusOr<std::string> ReadStandardInput(size_t most);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_STANDARD_INPUT_H_
