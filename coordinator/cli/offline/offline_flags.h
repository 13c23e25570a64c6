// The flags of `isthmus plan --topology`, and what the command's help says at its end. Thread: one
// owner.
#ifndef ISTHMUS_COORDINATOR_CLI_OFFLINE_OFFLINE_FLAGS_H_
#define ISTHMUS_COORDINATOR_CLI_OFFLINE_OFFLINE_FLAGS_H_

#include "coordinator/cli/offline/offline_plan.h"

namespace CLI {
class App;
}  // namespace CLI

namespace isthmus::cli {

void AddOfflineFlags(CLI::App* plan, OfflineOptions* options);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_OFFLINE_OFFLINE_FLAGS_H_
