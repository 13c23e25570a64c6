// The gRPC side of the coordinator: Control (daemons), Jobs (the CLI), Bulk (checkpoints).
// Synchronous: one thread a call, and one more to write to a daemon, so that a daemon that does not
// read holds up nobody. A FetchCheckpoint that has to wait for others says so at once, in the
// initial metadata kWaitsBehind. Exceptions become a Status that names the call. Thread: create,
// Stop and destroy on one; calls run on gRPC's threads, whose number base/rpc bounds.
#ifndef ISTHMUS_COORDINATOR_SERVICE_SERVICES_H_
#define ISTHMUS_COORDINATOR_SERVICE_SERVICES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator.h"

namespace isthmus::coordinator {

class Server {
 public:
  virtual ~Server() = default;  // Stop
  virtual int port() const = 0;
  // Ends new and running calls; those that do not end within `patience` are cut off.
  virtual void Stop(absl::Duration patience) = 0;

  // `address` is host:port, port 0 picks one. Unavailable names it if it is taken. `coordinator`
  // outlives the server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& address,
                                                       Coordinator* coordinator);
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_SERVICES_H_
