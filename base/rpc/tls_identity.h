// Who this program is over TLS, and whom it lets in: gRPC's credentials out of a --tls-dir. Each
// call to a server with these credentials is judged before its handler runs: by the certificate it
// came with, by the list of revoked ones, and by the server's table of calls. Thread: any.
#ifndef ISTHMUS_BASE_RPC_TLS_IDENTITY_H_
#define ISTHMUS_BASE_RPC_TLS_IDENTITY_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/rpc/allowed_calls.h"
#include "base/tls/folder.h"
#include "base/tls/revoked.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ClientContext;
class ServerCredentials;
class ServerContextBase;
}  // namespace grpc

namespace isthmus::rpc {

class TlsIdentity {
 public:
  // As tls::ReadFolder. A coordinator's revoked.pem must be there, and is read, too. The process
  // leaves no core dump from then on.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Load(const std::string& dir,
                                                           const std::vector<tls::Role>& roles);

  const tls::Folder& folder() const { return folder_; }
  const tls::Identity& who() const { return folder_.certificate.who; }

  std::shared_ptr<grpc::ChannelCredentials> ForChannels() const;
  // Told of each call that is not let in, though its certificate is of this authority. Thread: any.
  using OnRefused = std::function<void(const tls::Certificate& caller, absl::string_view call,
                                       const absl::Status& why)>;
  // `table` and `this` outlive the server.
  std::shared_ptr<grpc::ServerCredentials> ForServer(absl::Span<const AllowedCall> table,
                                                     OnRefused on_refused = nullptr) const;

  // The list that holds from now on; whom it names, of those that are watched, is told. The one
  // before holds where it is InvalidArgument: not of this authority, or older, since it lacks what
  // was revoked.
  absl::Status SetRevoked(const std::string& pem);
  // Reads revoked.pem of the folder again. True: another list holds now.
  absl::StatusOr<bool> RereadRevoked();
  std::string revoked_pem() const;  // empty: none is known
  // Unauthenticated, with who and when.
  absl::Status CheckRevoked(const tls::Certificate& certificate) const;
  bool IsRevoked(const std::string& serial) const;

  // Calls `end` once when the certificate is revoked, at once if it is already, until it is
  // destroyed. `end` must not wait, nor come back here.
  class Watch {
   public:
    Watch(const TlsIdentity* identity, const tls::Certificate& certificate,
          std::function<void()> end);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class TlsIdentity;
    const TlsIdentity* const identity_;
    const std::string serial_;
    const std::function<void()> end_;
  };

  // Of the server that a call went to, once it has answered, or taken a first message; null over
  // plain text.
  static std::unique_ptr<tls::Certificate> ServerOf(const grpc::ClientContext& context);
  // As CheckRevoked, of that one.
  absl::Status CheckServer(const grpc::ClientContext& context) const;

  // Of a call that was let in, and of what came in over plain text null.
  static std::unique_ptr<tls::Certificate> PeerOf(const grpc::ServerContextBase& context);

 private:
  explicit TlsIdentity(tls::Folder folder) : folder_(std::move(folder)) {}

  const tls::Folder folder_;
  mutable Mutex mutex_;
  tls::Revoked revoked_ ABSL_GUARDED_BY(mutex_);
  mutable std::set<const Watch*> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_TLS_IDENTITY_H_
