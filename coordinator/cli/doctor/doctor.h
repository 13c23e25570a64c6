// `isthmus doctor`: what stands in the way of training, from this machine and as the coordinator
// and the daemons see one another. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_DOCTOR_DOCTOR_H_
#define ISTHMUS_COORDINATOR_CLI_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "base/machine_check.h"
#include "coordinator/cli/client.h"
#include "coordinator/cli/view/console.h"
#include "proto/control.pb.h"

namespace isthmus::cli {

// What the coordinator's list of daemons says: who is there, whom the others reach, who is slow.
// `version` is ours. Pure.
std::vector<Finding> JudgeNodes(const ListNodesReply& nodes, const std::string& version);

// Prints every finding. kExitOk without a failure, kExitUnreachable where the coordinator did not
// answer, else kExitFailure.
int RunDoctor(const ClientOptions& client, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_DOCTOR_DOCTOR_H_
