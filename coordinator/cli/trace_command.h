// `isthmus trace`: what the next steps of a running job spend their time on, as a file for
// Perfetto. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_TRACE_COMMAND_H_
#define ISTHMUS_COORDINATOR_CLI_TRACE_COMMAND_H_

#include <string>

#include "coordinator/cli/client.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

struct TraceOptions {
  std::string job;
  int steps = 1;
  std::string output;  // empty: JOB-trace.json in the working directory, JOB being its id
  bool force = false;  // replace it
};
// kExitFailure where something is missing in the file that was written.
int RunTrace(const ClientOptions& client, const TraceOptions& options, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TRACE_COMMAND_H_
