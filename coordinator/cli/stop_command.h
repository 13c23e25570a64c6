// `isthmus stop`: ends a job, and waits until it has ended, so that it may be removed or resumed
// right after. `isthmus drain`: a daemon leaves its job. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_STOP_COMMAND_H_
#define ISTHMUS_COORDINATOR_CLI_STOP_COMMAND_H_

#include <string>

#include "coordinator/cli/client.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

struct StopOptions {
  std::string job;
  bool now = false;        // at once, without a checkpoint
  bool no_wait = false;    // as soon as the coordinator knows
  double timeout_s = 600;  // of the wait; a checkpoint may take longer over a slow path
  bool json = false;
};
// Exit code 6 where it waited and steps are lost, 7 where the time ran out, 130 at a signal; the
// job goes on stopping then.
int RunStop(const ClientOptions& client, const StopOptions& options, Console* console);

// `undo`: it gets jobs again.
int RunDrain(const ClientOptions& client, const std::string& node, bool undo, bool json,
             Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_STOP_COMMAND_H_
