// `isthmus testnet`: an emulated WAN, a coordinator and daemons as processes on it, one job from
// start to end, all taken down. Thread: one owner; starts children, so call it on the main thread.
#ifndef ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_RUN_H_
#define ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_RUN_H_

#include "coordinator/cli/testnet/testnet_plan.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

// The exit code: that of `submit --watch`, or of what failed before. After a failure the run
// directory with the logs stays.
int RunTestnet(const TestnetOptions& options, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_RUN_H_
