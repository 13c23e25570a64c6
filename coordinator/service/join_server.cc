#include "coordinator/service/join_server.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/rpc/guarded.h"
#include "base/status.h"
#include "base/tls/folder.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/join.grpc.pb.h"

namespace isthmus::coordinator {
namespace {

constexpr int kHandshakeMs = 10'000;
constexpr int kIdleMs = 10'000;
constexpr int kGraceMs = 5'000;
constexpr int kStreams = 4;  // of a connection
constexpr int kPollMs = 500;

class JoinService final : public Join::Service {
 public:
  JoinService(JoinServerOptions options, tls::Joins joins)
      : options_(std::move(options)),
        joins_(std::move(joins)),
        strangers_(options_.limits),
        daemons_(options_.limits) {}

  grpc::Status Join(grpc::ServerContext* context, const JoinRequest* request,
                    JoinReply* reply) override {
    return rpc::Guarded("Join", [&] {
      const std::string id = request->token_id().size() == tls::kTokenIdBytes
                                 ? absl::BytesToHexString(request->token_id())
                                 : "";
      return Answer("Join.Join", "", absl::StrCat("token ", id), *context,
                    Signed(&strangers_, AddressOfPeer(context->peer()),
                           [&]() -> absl::StatusOr<tls::SignedAnswer> {
                             ASSIGN_OR_RETURN(const tls::Role role, tls::RoleOf(request->role()));
                             return joins_.Join({request->token_id(), request->secret(), role,
                                                 request->request_pem()},
                                                tls::Today());
                           }),
                    reply);
    });
  }

  grpc::Status Renew(grpc::ServerContext* context, const RenewRequest* request,
                     JoinReply* reply) override {
    return rpc::Guarded("Renew", [&] {
      const auto caller = rpc::TlsIdentity::PeerOf(*context);
      if (caller == nullptr) {
        return rpc::ToGrpc(absl::UnauthenticatedError(
            "a certificate is renewed for a daemon that shows it, and this call came without"));
      }
      return Answer("Join.Renew", caller->who.name, absl::StrCat("serial ", caller->serial),
                    *context,
                    Signed(&daemons_, caller->who.name,
                           [&]() -> absl::StatusOr<tls::SignedAnswer> {
                             RETURN_IF_ERROR(options_.tls->CheckRevoked(*caller));
                             return joins_.Renew(*caller, request->request_pem(), tls::Today());
                           }),
                    reply);
    });
  }

 private:
  template <typename F>
  static absl::StatusOr<tls::SignedAnswer> Signed(JoinLimiter* limiter, const std::string& address,
                                                  F sign) {
    RETURN_IF_ERROR(limiter->Begin(address, SteadyNow()));
    const absl::Cleanup end = [limiter] { limiter->End(); };
    return sign();
  }

  // `by`: the daemon that its certificate names; empty: a stranger, of whom all refusals of a
  // minute are one line, but for those who have a token of this authority.
  grpc::Status Answer(const char* call, const std::string& by, const std::string& what,
                      const grpc::ServerContext& context,
                      const absl::StatusOr<tls::SignedAnswer>& answer, JoinReply* reply) {
    AuditEntry entry;
    entry.set_who(by);
    entry.set_role(by.empty() ? "" : "worker");
    entry.set_peer(context.peer());
    entry.set_call(call);
    entry.set_what(what);
    if (!answer.ok()) {
      const absl::Status& why = answer.status();
      const bool holder = (absl::IsPermissionDenied(why) && why != tls::UnknownToken()) ||
                          absl::IsAlreadyExists(why);
      if (by.empty() && holder) entry.set_who(what);
      entry.set_outcome(std::string(why.message()));
      options_.audit->AddRefused(std::move(entry), SteadyNow());
      return rpc::ToGrpc(why);
    }
    const tls::Certificate& made = answer->certificate;
    entry.set_what(absl::StrCat(what, ": ", tls::Words(made.who), ", serial ", made.serial));
    entry.set_outcome("ok");
    options_.audit->Add(std::move(entry));
    LogInfo(call, ": ", tls::Words(made.who), " has a certificate until ",
            absl::FormatTime(absl::RFC3339_sec, made.until, absl::UTCTimeZone()));
    reply->set_certificate_pem(answer->certificate_pem);
    reply->set_coordinator_port(options_.coordinator_port);
    return grpc::Status::OK;
  }

  const JoinServerOptions options_;
  const tls::Joins joins_;
  JoinLimiter strangers_, daemons_;
};

class GrpcJoinServer final : public JoinServer {
 public:
  GrpcJoinServer(JoinServerOptions options, tls::Joins joins)
      : tls_(options.tls), service_(std::move(options), std::move(joins)) {}
  ~GrpcJoinServer() override { Stop(absl::Seconds(1)); }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxJoinBytes);
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, kPollMs);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreams);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(kMaxJoinConnection)));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kGraceMs);
    grpc::ResourceQuota quota;
    quota.SetMaxThreads(kJoinThreads);
    builder.SetResourceQuota(quota);
    builder.AddListeningPort(address, Credentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ != 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("--join-listen ", address,
                     ": cannot listen there. Is the port taken, or not an address of this host?"));
  }

  int port() const override { return port_; }

  void Stop(absl::Duration patience) override {
    if (server_ == nullptr) return;
    server_->Shutdown(rpc::DeadlineAfter(patience));
    server_->Wait();
    server_.reset();
  }

 private:
  // A certificate is asked for and checked, but may be missing: strangers have none. They are shown
  // the authority's, by whose hash a token knows this place.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    const tls::Folder& own = tls_->folder();
    options.pem_root_certs = own.ca_pem;
    options.pem_key_cert_pairs.push_back({own.key_pem, own.certificate_pem + own.ca_pem});
    return grpc::SslServerCredentials(options);
  }

  const rpc::TlsIdentity* const tls_;
  JoinService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<JoinServer>> JoinServer::Start(JoinServerOptions options) {
  ASSIGN_OR_RETURN(tls::Joins joins, tls::Joins::Open(options.ca_dir));
  ASSIGN_OR_RETURN(const std::string hash, joins.AuthorityHash());
  ASSIGN_OR_RETURN(const std::string own,
                   tls::AuthorityHash(options.tls->folder().ca_pem, tls::kCaFile));
  if (hash != own) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ca ", options.ca_dir,
                     ": is another authority than that of the certificate in --tls-dir"));
  }
  const std::string address = options.listen;
  auto server = std::make_unique<GrpcJoinServer>(std::move(options), std::move(joins));
  RETURN_IF_ERROR(server->Listen(address));
  return std::unique_ptr<JoinServer>(std::move(server));
}

}  // namespace isthmus::coordinator
