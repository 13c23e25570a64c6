#include "base/rpc/channel.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/listening.h"
#include "base/rpc/newest_folder.h"
#include "base/rpc/tls_identity.h"
#include "base/tls/handshake.h"
#include "base/utf8.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"

namespace isthmus::rpc {
namespace {

// A server takes pings as often as this even while nothing else flows; clients ping at most every
// kMinKeepalive.
constexpr int kServerMinPingIntervalMs = 5'000;
constexpr absl::Duration kMinKeepalive = absl::Seconds(10);
constexpr int kServerKeepaliveMs = 20'000;
constexpr int kServerKeepaliveTimeoutMs = 20'000;

// An attempt to connect may take so long before the next address is tried: a black-holed IPv6
// address costs this once.
constexpr int kConnectAttemptMs = 5'000;
constexpr int kFirstBackoffMs = 500;
constexpr int kResolveAgainMs = 5'000;

// One thread a running synchronous call; a call beyond is refused with ResourceExhausted.
constexpr int kMaxServerThreads = 1'024;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kPollMs = 500;
constexpr int kHandshakeTimeoutMs = 10'000;

// HTTP/2 allows 2^31 - 1; gRPC adds the size of a message to the lookahead.
constexpr int64_t kMinWindowBytes = 64 << 10;
constexpr int64_t kMaxWindowBytes = 1 << 30;

constexpr absl::Duration kHandshakePatience = absl::Seconds(3);

constexpr char kAnswer[] = "isthmus";  // the details of an error that a program gave

int Milliseconds(absl::Duration duration) {
  const int64_t ms = absl::ToInt64Milliseconds(duration);
  return static_cast<int>(std::clamp<int64_t>(ms, 1, std::numeric_limits<int>::max()));
}

int WindowArgument(int64_t window_bytes) {
  return static_cast<int>(std::clamp(window_bytes, kMinWindowBytes, kMaxWindowBytes));
}

}  // namespace

ChannelOptions ToCoordinator(const Dialling& dialling) {
  ChannelOptions options;
  options.dialling = dialling;
  options.server_name = tls::kAnyCoordinator;
  return options;
}

ChannelOptions ToNode(const Dialling& dialling, const std::string& node_id) {
  ChannelOptions options;
  options.dialling = dialling;
  options.server_name = tls::ServerName({node_id, tls::Role::kWorker});
  return options;
}

absl::Status CheckPeer(const std::string& address, const Dialling& dialling) {
  if (dialling.tls != nullptr || !dialling.loopback_only || IsLoopback(address))
    return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(address,
                   " is another machine, and this program has no certificate: start it with "
                   "--tls-dir (isthmus ca issue NAME --role worker makes one), or, in a network "
                   "that is private already, with --insecure"));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const ChannelOptions& options) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, options.dialling.use_proxy ? 1 : 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else equal channels share a connection
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveAgainMs);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // nothing is sent twice behind our back
  args.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxMessageBytes);
  args.SetInt(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, kMaxMessageBytes);

  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(std::max(options.keepalive, kMinKeepalive)));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  const int max_backoff_ms = Milliseconds(options.max_backoff);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, std::min(kFirstBackoffMs, max_backoff_ms));
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectAttemptMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, max_backoff_ms);

  if (options.window_bytes > 0) {
    args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WindowArgument(options.window_bytes));
  }
  if (options.dialling.tls != nullptr) args.SetSslTargetNameOverride(options.server_name);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", address),
                                   options.dialling.tls == nullptr
                                       ? grpc::InsecureChannelCredentials()
                                       : options.dialling.tls->ForChannels(),
                                   args);
}

std::string WhyNoConnection(const std::string& address, const ChannelOptions& options,
                            absl::Duration patience, const std::function<bool()>& stop) {
  if (options.dialling.tls == nullptr)
    return tls::HandshakeFault(address, nullptr, options.server_name, patience, stop);
  const tls::Folder newest = NewestFolder(options.dialling.tls->folder());
  return tls::HandshakeFault(address, &newest, options.server_name, patience, stop);
}

absl::Status NoConnection(const std::string& address, const ChannelOptions& options,
                          const absl::Status& otherwise, const std::function<bool()>& stop) {
  const std::string why = WhyNoConnection(address, options, kHandshakePatience, stop);
  return why.empty() ? otherwise : absl::UnauthenticatedError(why);
}

void ConfigureServer(grpc::ServerBuilder* builder, int64_t window_bytes) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                              0);  // a second program on the same port is refused
  // A poller that misses the shutdown's wake-up looks again after so long; gRPC's own is 10 s,
  // which the end of a program then took.
  builder->SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, kPollMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);

  // Our clients ping every 10 s or slower. Faster ones (an older version, another clock) are not
  // cut off either: no strikes.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kServerMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kServerKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kServerKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  if (window_bytes > 0) {
    builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                                WindowArgument(window_bytes));
  }
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxServerThreads);
  builder->SetResourceQuota(quota);
}

absl::Status CheckAddress(const std::string& flag, const std::string& address) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", address, "' ", why,
                     "; expected HOST:PORT, for example 10.0.0.1:7070 or [::1]:7070"));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return bad("has no port");
  const absl::string_view host(address.data(), colon);
  const absl::string_view port = absl::string_view(address).substr(colon + 1);
  if (host.empty()) return bad("has no host");
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return bad("has a broken IPv6 address");
  } else if (host.find(':') != absl::string_view::npos) {
    return bad("has an IPv6 address without brackets");
  }
  if (host.find_first_of(" \t/,") != absl::string_view::npos)
    return bad("has a host with a blank, '/' or ','");
  int number = -1;
  if (port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &number) || number > 65535) {
    return bad("has no port from 0 to 65535");
  }
  return absl::OkStatus();
}

gpr_timespec DeadlineAfter(absl::Duration timeout) {
  const int64_t ns =
      absl::ToInt64Nanoseconds(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24)));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(ns, GPR_TIMESPAN));
}

// The codes of the two are the same numbers.
absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = status.error_code();
  const bool known = code >= 1 && code <= 16;
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      ToUtf8(status.error_message()));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const int code = static_cast<int>(status.code());
  const bool known = code >= 1 && code <= 16;
  return grpc::Status(known ? static_cast<grpc::StatusCode>(code) : grpc::StatusCode::UNKNOWN,
                      ToUtf8(status.message()), kAnswer);
}

bool Answered(const grpc::Status& status) { return status.error_details() == kAnswer; }

}  // namespace isthmus::rpc
