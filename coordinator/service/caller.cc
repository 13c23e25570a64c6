#include "coordinator/service/caller.h"

#include <utility>

#include "base/clock.h"
#include "base/rpc/allowed_calls.h"
#include "base/rpc/tls_identity.h"
#include "grpcpp/server_context.h"

namespace isthmus::coordinator {

Caller::Caller(const grpc::ServerContext& context, Coordinator* coordinator)
    : coordinator_(coordinator),
      certificate_(rpc::TlsIdentity::PeerOf(context)),
      peer_(context.peer()) {}

absl::Status Caller::CheckRevoked() const {
  return certificate_ == nullptr ? absl::OkStatus()
                                 : coordinator_->tls()->CheckRevoked(*certificate_);
}

absl::Status Caller::CheckPlanned(const std::string& job_id) const {
  if (certificate_ == nullptr || certificate_->who.role != tls::Role::kWorker)
    return absl::OkStatus();
  return coordinator_->checkpoints()->CheckPlanned(certificate_->who.name, job_id);
}

absl::Status Caller::CheckPart(const PutCheckpointHeader& header) const {
  if (certificate_ == nullptr || certificate_->who.role != tls::Role::kWorker)
    return absl::OkStatus();
  return coordinator_->checkpoints()->CheckPart(certificate_->who.name, header);
}

grpc::Status Caller::Audited(const char* call, const std::string& what,
                             const grpc::Status& ended) const {
  AuditEntry entry;
  if (certificate_ != nullptr) {
    entry.set_who(certificate_->who.name);
    entry.set_role(tls::RoleName(certificate_->who.role));
  }
  entry.set_peer(peer_);
  entry.set_call(call);
  entry.set_what(what);
  entry.set_outcome(ended.ok() ? "ok" : ended.error_message());
  coordinator_->audit()->Add(std::move(entry));
  return ended;
}

void AuditRefusal(const tls::Certificate& caller, absl::string_view call, const absl::Status& why,
                  Coordinator* coordinator) {
  AuditEntry entry;
  entry.set_who(caller.who.name);
  entry.set_role(tls::RoleName(caller.who.role));
  entry.set_call(rpc::CallName(call));
  entry.set_outcome(std::string(why.message()));
  coordinator->audit()->AddRefused(std::move(entry), SteadyNow());
  if (caller.who.role == tls::Role::kWorker && coordinator->tls()->IsRevoked(caller.serial))
    coordinator->daemons()->OnRevokedCall(caller.who.name, caller.serial);
}

}  // namespace isthmus::coordinator
