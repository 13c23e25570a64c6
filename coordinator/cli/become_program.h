// Commands that are programs of their own, since this one holds nothing of `worker`: the process
// becomes that program, with its arguments, its help and its exit code. Thread: main.
#ifndef ISTHMUS_COORDINATOR_CLI_BECOME_PROGRAM_H_
#define ISTHMUS_COORDINATOR_CLI_BECOME_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

// `name`, found as FindProgram does. Returns only if it can't be started: the exit code.
int BecomeProgram(const std::string& name, std::vector<std::string> arguments, Console* console);

// What the --help of a program prints that has a manual page of its own, such as isthmusd.
// InvalidArgument: `name` is none of them; NotFound: it is not installed.
absl::StatusOr<std::string> HelpOf(const std::string& name);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_BECOME_PROGRAM_H_
