// The port where hosts without a certificate ask for one (--join-listen), and where daemons renew
// theirs: a gRPC server of its own that serves the service Join and nothing else, so that every
// other call keeps demanding certificates. What a stranger can cost has bounds: kMaxJoinBytes of a
// request, JoinLimits, kJoinThreads, and connections that are cut off after kMaxJoinConnection.
// Thread: Start, Stop and the destructor on one; calls run on gRPC's threads.
#ifndef ISTHMUS_COORDINATOR_SERVICE_JOIN_SERVER_H_
#define ISTHMUS_COORDINATOR_SERVICE_JOIN_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/rpc/tls_identity.h"
#include "base/tls/joins.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/join_limits.h"

namespace isthmus::coordinator {

constexpr int kMaxJoinBytes = 16 << 10;  // of a request
constexpr int kJoinThreads = 24;
constexpr absl::Duration kMaxJoinConnection = absl::Seconds(30);

struct JoinServerOptions {
  std::string listen;                     // host:port, port 0 picks one
  std::string ca_dir;                     // the authority's directory, with its key
  int coordinator_port = 0;               // told to who has joined
  const rpc::TlsIdentity* tls = nullptr;  // as which it answers; outlives the server
  Audit* audit = nullptr;                 // likewise
  JoinLimits limits;                      // of joins; renewals have as many of their own, by name
};

class JoinServer {
 public:
  virtual ~JoinServer() = default;  // Stop
  virtual int port() const = 0;
  virtual void Stop(absl::Duration patience) = 0;

  // NotFound: no authority in ca_dir. InvalidArgument: it is another one than that of `tls`.
  // Unavailable: the address can't be had.
  static absl::StatusOr<std::unique_ptr<JoinServer>> Start(JoinServerOptions options);
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_JOIN_SERVER_H_
