// The exit codes of every program of the project. Thread: pure function.
#ifndef ISTHMUS_COORDINATOR_CLI_EXIT_CODE_H_
#define ISTHMUS_COORDINATOR_CLI_EXIT_CODE_H_

#include "absl/status/status.h"

namespace isthmus::cli {

enum ExitCode {
  kExitOk = 0,
  kExitFailure = 1,        // at run time
  kExitUsage = 2,          // a flag, a job file, a name that is not there
  kExitMachine = 3,        // root, TUN, memory, disk
  kExitUnreachable = 4,    // coordinator or peer
  kExitRefused = 5,        // generation, identity, a directory in use
  kExitJobNotDone = 6,     // the watched job ended paused or failed
  kExitInterrupted = 130,  // SIGINT or SIGTERM while watching
};

int ExitCodeFor(const absl::Status& status);

// For `--help`.
extern const char kExitCodeHelp[];

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_EXIT_CODE_H_
