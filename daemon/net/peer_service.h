// The gRPC server that other daemons dial: links, copies of their local checkpoints, and the probes
// of round trip and rate.
// Thread: gRPC's own, one a running call. Shutdown ends every call and waits; sessions must have
// dropped their links before.
#ifndef ISTHMUS_DAEMON_NET_PEER_SERVICE_H_
#define ISTHMUS_DAEMON_NET_PEER_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file/byte_source.h"
#include "base/rpc/allowed_calls.h"
#include "base/rpc/tls_identity.h"
#include "daemon/net/dial_board.h"
#include "daemon/net/watchdog.h"
#include "proto/control.pb.h"
#include "proto/plan/link_bounds.h"

namespace isthmus::daemon {

struct PeerServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string node_id;  // who this is: dials that mean another daemon are refused; empty: none are
  std::string name;
  std::shared_ptr<const rpc::TlsIdentity> tls;  // null: plain text
  // The HTTP/2 window of everything that comes in at this server. gRPC fixes it when a server
  // starts, before any plan is known, so the plan's window_bytes bounds only the direction towards
  // the dialling end. 16 MiB carry 670 Mbit/s at 200 ms; it is also what one stalled link may hold
  // here.
  int64_t window_bytes = kServingWindowBytes;
  absl::Duration hello_timeout = absl::Seconds(10);  // from the call to its first message
  absl::Duration dial_wait = absl::Seconds(120);     // for the session to ask for a dial
  DialBoard* board = nullptr;                        // outlive the server
  Watchdog* watchdog = nullptr;
  // Keeps a copy of a part that another daemon sends, read in order while it arrives. `from`: the
  // node of its certificate; empty: plain text. Null: no copies are kept.
  std::function<absl::Status(const PutCheckpointHeader& header, const ByteSource& part,
                             const std::string& from)>
      keep_copy;
  absl::Duration piece_timeout = absl::Seconds(30);  // between two pieces of a part
};

absl::Span<const rpc::AllowedCall> AllowedPeerCalls();

class PeerServer {
 public:
  virtual ~PeerServer() = default;  // Shutdown
  virtual int port() const = 0;
  virtual void Shutdown() = 0;

  // Unavailable names the address if it can't be had.
  static absl::StatusOr<std::unique_ptr<PeerServer>> Start(const PeerServerOptions& options);
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_PEER_SERVICE_H_
