// Who calls the coordinator: for the audit, and for what the table of calls leaves to the handlers.
// Thread: one owner, the handler.
#ifndef ISTHMUS_COORDINATOR_SERVICE_CALLER_H_
#define ISTHMUS_COORDINATOR_SERVICE_CALLER_H_

#include <memory>
#include <string>

#include "base/tls/certificate.h"
#include "coordinator/service/coordinator.h"

namespace grpc {
class ServerContext;
class Status;
}  // namespace grpc

namespace isthmus::coordinator {

class Caller {
 public:
  Caller(const grpc::ServerContext& context, Coordinator* coordinator);

  // A call that goes on for long ends with its certificate.
  absl::Status CheckRevoked() const;

  // Checkpoints of a job: an operator's any, a daemon's those of its own jobs.
  absl::Status CheckPlanned(const std::string& job_id) const;
  absl::Status CheckPart(const PutCheckpointHeader& header) const;

  // Writes down what was done, or was not; returns how it ended.
  grpc::Status Audited(const char* call, const std::string& what, const grpc::Status& ended) const;

 private:
  Coordinator* const coordinator_;
  const std::unique_ptr<const tls::Certificate> certificate_;  // null: over plain text
  const std::string peer_;
};

// Writes down that a call was not let in, once a minute for each caller and call. Of a daemon whose
// certificate is revoked its job is told.
void AuditRefusal(const tls::Certificate& caller, absl::string_view call, const absl::Status& why,
                  Coordinator* coordinator);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_CALLER_H_
