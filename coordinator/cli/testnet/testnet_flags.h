// The flags of `isthmus testnet`, and what the command's help says at its end. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_FLAGS_H_
#define ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_FLAGS_H_

#include "coordinator/cli/testnet/testnet_plan.h"

namespace CLI {
class App;
}  // namespace CLI

namespace isthmus::cli {

// All but the job file.
void AddTestnetFlags(CLI::App* testnet, TestnetOptions* options);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TESTNET_TESTNET_FLAGS_H_
