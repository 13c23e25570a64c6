// gRPC channels and servers as this project uses them: proxies off unless asked, keepalive that our
// own servers accept, bounded windows and messages, absl::Status in and out. Control and bulk never
// share a channel (each call makes its own connection). Thread: pure functions; the results follow
// gRPC's rules.
#ifndef ISTHMUS_BASE_RPC_CHANNEL_H_
#define ISTHMUS_BASE_RPC_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpc/support/time.h"

namespace grpc {
class Channel;
class ServerBuilder;
class Status;
}  // namespace grpc

namespace isthmus::rpc {

class TlsIdentity;

constexpr int kMaxMessageBytes = 4 << 20;

// Initial metadata of the coordinator's answer to Nodes: its clock, Unix time in milliseconds. For
// `isthmus doctor` alone; nothing else depends on clocks.
inline constexpr char kClockHeader[] = "isthmus-unix-ms";
// There where it listens off loopback without certificates.
inline constexpr char kInsecureHeader[] = "isthmus-insecure";

// How a program dials, whomever it dials.
struct Dialling {
  bool use_proxy = false;                  // honour http_proxy and friends
  std::shared_ptr<const TlsIdentity> tls;  // null: plain text
  bool loopback_only = false;              // ... which stays on this machine
};

struct ChannelOptions {
  // HTTP/2 window of a stream that we receive; 0: gRPC's default. gRPC's bandwidth probe stays on:
  // without it the window of the whole connection never leaves 64 KiB, which is what a link would
  // carry in a round trip.
  int64_t window_bytes = 0;
  Dialling dialling;
  std::string server_name;                       // with TLS: what the certificate there has to name
  absl::Duration keepalive = absl::Seconds(20);  // ping when idle for so long
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration max_backoff = absl::Seconds(10);  // between connection attempts
};

// For a channel to the coordinator, and to the daemon of a node.
ChannelOptions ToCoordinator(const Dialling& dialling);
ChannelOptions ToNode(const Dialling& dialling, const std::string& node_id);

// PermissionDenied: plain text would leave this machine, to a peer that somebody else named.
absl::Status CheckPeer(const std::string& address, const Dialling& dialling);

// `address` is host:port. Does not connect yet. With TLS nothing is said before the certificate
// there has been found to be that of `server_name`.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelOptions& options);

// Why no connection comes about, where the way there is open and TLS stands in it; else "". Asked
// after a failure: it tries by itself, for `patience` at most.
std::string WhyNoConnection(const std::string& address, const ChannelOptions& options,
                            absl::Duration patience, const std::function<bool()>& stop = nullptr);

// The same as a status, if there are such words; else `otherwise`. `stop` ends the asking early.
absl::Status NoConnection(const std::string& address, const ChannelOptions& options,
                          const absl::Status& otherwise,
                          const std::function<bool()>& stop = nullptr);

// Limits, keepalive permission and windows for a server that ours dial. Call before BuildAndStart.
void ConfigureServer(grpc::ServerBuilder* builder, int64_t window_bytes = 0);

// InvalidArgument unless `address` is host:port with a port from 0 to 65535; `flag` is named in the
// error.
absl::Status CheckAddress(const std::string& flag, const std::string& address);

// A deadline for gRPC's calls by the steady clock: a wall clock that is set does not move it.
gpr_timespec DeadlineAfter(absl::Duration timeout);

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

// Did the other program say so, by ToGrpc? False: gRPC of either end did, for want of a way or of
// an answer in time.
bool Answered(const grpc::Status& status);

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_CHANNEL_H_
