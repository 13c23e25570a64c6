#include "coordinator/service/security_service.h"

#include <string>

#include "base/hash.h"
#include "base/rpc/channel.h"
#include "base/rpc/guarded.h"
#include "proto/security_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::coordinator {
namespace {

class SecurityService final : public Security::Service {
 public:
  explicit SecurityService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status Audit(grpc::ServerContext*, const AuditRequest* request,
                     AuditReply* reply) override {
    return rpc::Guarded("Audit", [&] {
      absl::StatusOr<AuditReply> last = coordinator_->audit()->Last(request->last());
      if (!last.ok()) return rpc::ToGrpc(last.status());
      *reply = WithValidText(*last);
      return grpc::Status::OK;
    });
  }

  grpc::Status Revoked(grpc::ServerContext*, const RevokedRequest* request,
                       RevokedReply* reply) override {
    if (coordinator_->tls() == nullptr)
      return rpc::ToGrpc(absl::FailedPreconditionError("this coordinator has no certificate"));
    std::string pem = coordinator_->tls()->revoked_pem();
    reply->set_same(Hash64(pem) == request->have());
    if (!reply->same()) reply->set_pem(std::move(pem));
    return grpc::Status::OK;
  }

 private:
  Coordinator* const coordinator_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSecurityService(Coordinator* coordinator) {
  return std::make_unique<SecurityService>(coordinator);
}

}  // namespace isthmus::coordinator
