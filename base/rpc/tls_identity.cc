#include "base/rpc/tls_identity.h"

#include <sys/prctl.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file/read_file.h"
#include "base/rpc/channel.h"
#include "base/rpc/newest_folder.h"
#include "base/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/server_context.h"

namespace isthmus::rpc {
namespace {

constexpr char kPath[] = ":path";  // of HTTP/2: the call
constexpr unsigned kLookForNewS = 2;

absl::StatusOr<tls::Certificate> CertificateIn(const grpc::AuthContext& context) {
  const std::vector<grpc::string_ref> pem =
      context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (pem.empty()) return absl::UnauthenticatedError("the call came without a certificate");
  return tls::ReadCertificate(std::string(pem[0].data(), pem[0].size()),
                              "the caller's certificate");
}

std::shared_ptr<grpc::ServerCredentials> Fixed(const tls::Folder& folder) {
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = folder.ca_pem;
  options.pem_key_cert_pairs.push_back({folder.key_pem, folder.certificate_pem});
  return grpc::SslServerCredentials(options);
}

// Of a folder whose certificate is replaced while the server runs: new connections see the new one.
std::shared_ptr<grpc::ServerCredentials> Watching(const std::string& dir) {
  const auto file = [&](const char* name) { return absl::StrCat(dir, "/", name); };
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          file(tls::kKeyFile), file(tls::kCertificateFile), file(tls::kCaFile), kLookForNewS));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

class Judge final : public grpc::AuthMetadataProcessor {
 public:
  Judge(const TlsIdentity* identity, absl::Span<const AllowedCall> table,
        TlsIdentity::OnRefused on_refused)
      : identity_(identity), table_(table), on_refused_(std::move(on_refused)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override {
    const auto path = metadata.find(kPath);
    return ToGrpc(Check(*context, path == metadata.end() ? absl::string_view()
                                                         : absl::string_view(path->second.data(),
                                                                             path->second.size())));
  }

 private:
  absl::Status Check(const grpc::AuthContext& context, absl::string_view call) const {
    ASSIGN_OR_RETURN(const tls::Certificate caller, CertificateIn(context));
    const absl::Status judged = CheckCaller(caller, call);
    if (!judged.ok() && on_refused_) on_refused_(caller, call, judged);
    return judged;
  }
  absl::Status CheckCaller(const tls::Certificate& caller, absl::string_view call) const {
    RETURN_IF_ERROR(identity_->CheckRevoked(caller));
    const absl::Status times = tls::CheckTimes(caller, tls::Today());  // of an old connection, too
    if (!times.ok()) return absl::UnauthenticatedError(times.message());
    return CheckCall(table_, caller.who, call);
  }

  const TlsIdentity* const identity_;
  const absl::Span<const AllowedCall> table_;
  const TlsIdentity::OnRefused on_refused_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::Load(
    const std::string& dir, const std::vector<tls::Role>& roles) {
  ::prctl(PR_SET_DUMPABLE, 0);  // from here on the key is in memory: it must be in no core dump
  ASSIGN_OR_RETURN(tls::Folder folder, tls::ReadFolder(dir, roles, tls::Today()));
  std::shared_ptr<TlsIdentity> identity(new TlsIdentity(std::move(folder)));
  if (identity->who().role == tls::Role::kCoordinator)
    RETURN_IF_ERROR(identity->RereadRevoked().status());
  return identity;
}

std::shared_ptr<grpc::ChannelCredentials> TlsIdentity::ForChannels() const {
  const tls::Folder newest = NewestFolder(folder_);
  return grpc::SslCredentials({newest.ca_pem, newest.key_pem, newest.certificate_pem});
}

std::shared_ptr<grpc::ServerCredentials> TlsIdentity::ForServer(absl::Span<const AllowedCall> table,
                                                                OnRefused on_refused) const {
  auto credentials = IsJoined(folder_.path) ? Watching(folder_.path) : Fixed(folder_);
  credentials->SetAuthMetadataProcessor(
      std::make_shared<Judge>(this, table, std::move(on_refused)));
  return credentials;
}

absl::Status TlsIdentity::SetRevoked(const std::string& pem) {
  ASSIGN_OR_RETURN(tls::Revoked revoked,
                   tls::Revoked::Read(pem, folder_.ca_pem, "the list of revoked certificates"));
  MutexLock lock(&mutex_);
  if (!revoked.Covers(revoked_)) {
    return absl::InvalidArgumentError(
        "the list of revoked certificates is older than the one that holds: it lacks some of them");
  }
  revoked_ = std::move(revoked);
  for (const Watch* watch : watches_) {
    if (revoked_.Find(watch->serial_) != nullptr) watch->end_();
  }
  return absl::OkStatus();
}

TlsIdentity::Watch::Watch(const TlsIdentity* identity, const tls::Certificate& certificate,
                          std::function<void()> end)
    : identity_(identity), serial_(certificate.serial), end_(std::move(end)) {
  MutexLock lock(&identity_->mutex_);
  identity_->watches_.insert(this);
  if (identity_->revoked_.Find(serial_) != nullptr) end_();
}

TlsIdentity::Watch::~Watch() {
  MutexLock lock(&identity_->mutex_);
  identity_->watches_.erase(this);
}

std::unique_ptr<tls::Certificate> TlsIdentity::ServerOf(const grpc::ClientContext& context) {
  const auto auth = context.auth_context();
  if (auth == nullptr) return nullptr;
  absl::StatusOr<tls::Certificate> certificate = CertificateIn(*auth);
  return certificate.ok() ? std::make_unique<tls::Certificate>(*std::move(certificate)) : nullptr;
}

absl::Status TlsIdentity::CheckServer(const grpc::ClientContext& context) const {
  const auto there = ServerOf(context);
  return there == nullptr ? absl::UnauthenticatedError("the server there shows no certificate")
                          : CheckRevoked(*there);
}

absl::StatusOr<bool> TlsIdentity::RereadRevoked() {
  const std::string file = absl::StrCat(folder_.path, "/", tls::kRevokedFile);
  ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, tls::kMaxRevokedBytes));
  if (pem == revoked_pem()) return false;
  RETURN_IF_ERROR(Annotate(SetRevoked(pem), file));
  return true;
}

std::string TlsIdentity::revoked_pem() const {
  MutexLock lock(&mutex_);
  return revoked_.pem();
}

absl::Status TlsIdentity::CheckRevoked(const tls::Certificate& certificate) const {
  MutexLock lock(&mutex_);
  const absl::Time* when = revoked_.Find(certificate.serial);
  if (when == nullptr) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate of ", tls::Words(certificate.who), ", serial ",
                   certificate.serial, ", was revoked on ", tls::DayOf(*when),
                   ": it is let in again with a new one (isthmus ca issue; a host that joined: "
                   "remove tls and tls-joining from its --state-dir, and join with a new token)"));
}

bool TlsIdentity::IsRevoked(const std::string& serial) const {
  MutexLock lock(&mutex_);
  return revoked_.Find(serial) != nullptr;
}

std::unique_ptr<tls::Certificate> TlsIdentity::PeerOf(const grpc::ServerContextBase& context) {
  const auto auth = context.auth_context();
  absl::StatusOr<tls::Certificate> certificate = CertificateIn(*auth);
  return certificate.ok() ? std::make_unique<tls::Certificate>(*std::move(certificate)) : nullptr;
}

}  // namespace isthmus::rpc
