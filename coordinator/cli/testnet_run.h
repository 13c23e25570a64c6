// `isthmus testnet`: an emulated WAN, a coordinator and daemons as processes on it, one job from
// start to end, all taken down. Thread: one owner; starts children, so call it on the main thread.
#ifndef ISTHMUS_COORDINATOR_CLI_TESTNET_RUN_H_
#define ISTHMUS_COORDINATOR_CLI_TESTNET_RUN_H_

#include "coordinator/cli/console.h"
#include "coordinator/cli/testnet_plan.h"

namespace isthmus::cli {

// The exit code: that of `submit --watch`, or of what failed before. After a failure the run
// directory with the logs stays.
int RunTestnet(const TestnetOptions& options, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TESTNET_RUN_H_
