// `isthmus audit`: who changed what. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_TLS_AUDIT_COMMAND_H_
#define ISTHMUS_COORDINATOR_CLI_TLS_AUDIT_COMMAND_H_

#include "coordinator/cli/client.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

// The last entries, the oldest of them first.
int RunAudit(const ClientOptions& client, int last, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TLS_AUDIT_COMMAND_H_
