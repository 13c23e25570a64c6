// Completions for shells, made from the table of commands. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_SHELL_COMPLETION_H_
#define ISTHMUS_COORDINATOR_CLI_SHELL_COMPLETION_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cli/shell/command_table.h"

namespace isthmus::cli {

// `shell`: bash, zsh or fish; else InvalidArgument.
absl::StatusOr<std::string> Completion(const CommandTable& table, const std::string& shell);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_SHELL_COMPLETION_H_
