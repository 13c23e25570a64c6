// A client whose calls end at a signal. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_INTERRUPTIBLE_CLIENT_H_
#define ISTHMUS_COORDINATOR_CLI_INTERRUPTIBLE_CLIENT_H_

#include <memory>

#include "absl/status/status.h"
#include "base/status.h"
#include "coordinator/cli/client.h"
#include "coordinator/cli/interrupt.h"

namespace isthmus::cli {

struct InterruptibleClient {
  Interrupt interrupt;  // before the client: its threads inherit the signal mask
  std::unique_ptr<Client> client;

  ~InterruptibleClient() { interrupt.OnSignal(nullptr); }
  absl::Status Open(const ClientOptions& options) {
    ASSIGN_OR_RETURN(client, Client::Connect(options));
    interrupt.OnSignal([c = client.get()] { c->Cancel(); });
    return absl::OkStatus();
  }
};

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_INTERRUPTIBLE_CLIENT_H_
