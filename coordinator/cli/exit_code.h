// The exit codes of every program of the project: one table, which `--help` prints and README.md
// repeats. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_EXIT_CODE_H_
#define ISTHMUS_COORDINATOR_CLI_EXIT_CODE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace isthmus::cli {

enum ExitCode {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,
  kExitMachine = 3,
  kExitUnreachable = 4,
  kExitRefused = 5,
  kExitJobNotDone = 6,
  kExitNotNow = 7,
  kExitInterrupted = 130,
};

struct ExitMeaning {
  ExitCode code;
  const char* meaning;
};
absl::Span<const ExitMeaning> ExitCodes();  // by code

// kUnavailable and kDeadlineExceeded are kExitNotNow, unless they are marked as Unreachable.
int ExitCodeFor(const absl::Status& status);

// Marks an error: nobody answered at the coordinator's address.
absl::Status Unreachable(absl::Status status);

std::string ExitCodeHelp();

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_EXIT_CODE_H_
