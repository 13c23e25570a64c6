// The command line of `isthmus`. The door to CLI11, with shell/command_table.h.
// Thread: one owner, the main thread.
#ifndef ISTHMUS_COORDINATOR_CLI_APP_H_
#define ISTHMUS_COORDINATOR_CLI_APP_H_

#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

// The exit code (exit_code.h).
int RunApp(int argc, const char* const* argv, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_APP_H_
