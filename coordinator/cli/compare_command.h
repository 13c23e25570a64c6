// `isthmus plan JOB --compare`: whether the planner's plan is worth it. Thread: one owner; pure
// functions.
#ifndef ISTHMUS_COORDINATOR_CLI_COMPARE_COMMAND_H_
#define ISTHMUS_COORDINATOR_CLI_COMPARE_COMMAND_H_

#include <string>

#include "coordinator/cli/client.h"
#include "coordinator/cli/offline/offline_plan.h"
#include "coordinator/cli/view/console.h"
#include "proto/comparison.pb.h"

namespace isthmus::cli {

// A row a plan, then what differs and what each choice of the planner saves. `offline`: of hosts
// and links that nobody measured.
std::string ComparisonView(const PlanComparison& comparison, bool offline);

// With `offline.links` here, on the hosts of that table; else by the coordinator. Returns the exit
// code.
int RunCompare(const ClientOptions& client, const PlanRequest& request,
               const OfflineOptions& offline, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_COMPARE_COMMAND_H_
