#include "daemon/net/peer_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/link_rate.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "daemon/net/link_error.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/peer_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

constexpr rpc::Roles kWorker = {tls::Role::kWorker};
constexpr rpc::AllowedCall kCalls[] = {{"/isthmus.Peer/Link", kWorker},
                                       {"/isthmus.Peer/Echo", kWorker},
                                       {"/isthmus.Peer/Upload", kWorker},
                                       {"/isthmus.Peer/Download", kWorker},
                                       {"/isthmus.Peer/KeepPart", kWorker}};

constexpr size_t kMaxNameBytes = 256;                  // job and link ids of a hello
constexpr int64_t kMaxReplyBytes = 3 << 20;            // of an Echo
constexpr int64_t kMaxUploadBytes = int64_t{1} << 30;  // one Upload
constexpr absl::Duration kMaxUploadTime = absl::Seconds(60);
constexpr int kMaxProbes = 16;                             // at once
constexpr absl::Duration kRedialWait = absl::Seconds(10);  // for its link to take it
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

// A part while it arrives: what is asked for in order is read from the call.
class ArrivingPart : public ByteSource {
 public:
  // The pointers outlive it.
  ArrivingPart(grpc::ServerReader<PutCheckpointChunk>* reader, Watchdog::Watch* watch,
               int64_t bytes)
      : reader_(reader), watch_(watch), bytes_(bytes) {}
  int64_t bytes() const override { return bytes_; }
  absl::Status ReadAt(int64_t offset, size_t count, char* out) const override {
    ISTHMUS_CHECK(offset == read_);  // a part that arrives is read in order
    for (size_t got = 0; got < count;) {
      if (used_ == chunk_.data().size()) {
        used_ = 0;
        chunk_.clear_data();
        if (!reader_->Read(&chunk_) || chunk_.has_header()) {
          return absl::DataLossError(absl::StrCat(
              "it ended after ", read_ + static_cast<int64_t>(got), " of ", bytes_, " bytes"));
        }
        watch_->Touch();
      }
      const size_t piece = std::min(count - got, chunk_.data().size() - used_);
      std::copy_n(chunk_.data().data() + used_, piece, out + got);
      used_ += piece;
      got += piece;
    }
    read_ += static_cast<int64_t>(count);
    return absl::OkStatus();
  }

 private:
  grpc::ServerReader<PutCheckpointChunk>* const reader_;
  Watchdog::Watch* const watch_;
  const int64_t bytes_;
  mutable PutCheckpointChunk chunk_;
  mutable size_t used_ = 0;  // of it
  mutable int64_t read_ = 0;
};

class Service final : public Peer::Service {
 public:
  explicit Service(const PeerServerOptions& options) : options_(options) {}

  grpc::Status Link(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<LinkChunk, LinkChunk>* stream) override {
    LinkChunk first;
    {
      Watchdog::Watch watch(options_.watchdog, options_.hello_timeout,
                            [context] { context->TryCancel(); });
      if (!stream->Read(&first)) return grpc::Status(grpc::StatusCode::CANCELLED, "no hello came");
    }
    const LinkHello& hello = first.hello();
    if (!first.has_hello() || hello.job_id().empty() || hello.job_id().size() > kMaxNameBytes ||
        hello.link_id().size() > kMaxNameBytes || hello.from_node_id().size() > kMaxNameBytes ||
        !first.data().empty()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                          "the first message of a link must be a hello with job and link");
    }
    if (hello.connection() < 0 || hello.connection() >= std::max(1, hello.connections()) ||
        hello.connections() > kMaxConnections) {
      return grpc::Status(
          grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrCat("a hello names connection ", hello.connection(), " of ", hello.connections(),
                       "; a link has 1 to ", kMaxConnections, ", counted from 0"));
    }
    if (const grpc::Status other = Meant(hello.to_node_id()); !other.ok()) return other;
    if (const grpc::Status not_own = Own(*context, hello.from_node_id()); !not_own.ok())
      return not_own;
    const absl::StatusOr<LinkHeader> header = HeaderOf(*context);
    if (!header.ok()) return rpc::ToGrpc(header.status());
    if (header->kind == LinkHeader::kAsk) {
      const absl::Status here = options_.board->redials().Ask(hello, header->attempt);
      if (here.ok()) stream->Write(first);
      return rpc::ToGrpc(here);
    }
    auto call = std::make_shared<ServerCall>();
    call->context = context;
    call->stream = stream;
    call->header = *header;
    const auto watch = EndOnRevoked(context);
    const absl::Status taken = header->kind == LinkHeader::kRedial
                                   ? options_.board->redials().Offer(hello, call, kRedialWait)
                                   : options_.board->Offer(hello, call, options_.dial_wait);
    if (!taken.ok()) return rpc::ToGrpc(taken);
    MutexLock lock(&call->mutex);
    while (!call->ended)
      call->changed.Wait(&call->mutex);  // the session's links end by their own deadlines
    return rpc::ToGrpc(ToTrailer(call->result));
  }

  grpc::Status Echo(grpc::ServerContext* context, const ProbeRequest* request,
                    ProbeReply* reply) override {
    if (request->reply_bytes() < 0 || request->reply_bytes() > kMaxReplyBytes) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                          absl::StrCat("reply_bytes must be 0 to ", kMaxReplyBytes));
    }
    if (const grpc::Status other = Meant(request->target_id()); !other.ok()) return other;
    reply->set_node_id(options_.node_id);
    reply->set_received_bytes(static_cast<int64_t>(request->padding().size()));
    reply->mutable_padding()->resize(static_cast<size_t>(request->reply_bytes()));
    return grpc::Status::OK;
  }

  grpc::Status Upload(grpc::ServerContext* context, grpc::ServerReader<ProbeRequest>* reader,
                      ProbeReply* reply) override {
    return OneOfFew([&] { return ReceiveUpload(context, reader, reply); });
  }

  grpc::Status Download(grpc::ServerContext* context, const ProbeRequest* request,
                        grpc::ServerWriter<ProbeReply>* writer) override {
    return OneOfFew([&] { return SendDownload(context, *request, writer); });
  }

  grpc::Status KeepPart(grpc::ServerContext* context,
                        grpc::ServerReader<PutCheckpointChunk>* reader,
                        PutCheckpointReply* reply) override {
    return OneOfFew([&] { return TakePart(context, reader, reply); });
  }

 private:
  using Clock = std::chrono::steady_clock;

  grpc::Status TakePart(grpc::ServerContext* context,
                        grpc::ServerReader<PutCheckpointChunk>* reader, PutCheckpointReply* reply) {
    Watchdog::Watch watch(options_.watchdog, options_.piece_timeout,
                          [context] { context->TryCancel(); });
    PutCheckpointChunk chunk;
    if (!reader->Read(&chunk) || !chunk.has_header() || chunk.header().file_bytes() < 0) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                          "checkpoint part: its header must come first");
    }
    const PutCheckpointHeader& header = chunk.header();
    if (const grpc::Status other = Meant(header.to_node_id()); !other.ok()) return other;
    if (options_.keep_copy == nullptr)
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "this daemon keeps no copies");
    const auto revoked = EndOnRevoked(context);
    const auto certificate = rpc::TlsIdentity::PeerOf(*context);
    const absl::Status kept =
        options_.keep_copy(header, ArrivingPart(reader, &watch, header.file_bytes()),
                           certificate == nullptr ? "" : certificate->who.name);
    reply->set_complete(kept.ok());
    return rpc::ToGrpc(kept);
  }

  // A call that goes on for long ends with its certificate. Null over plain text.
  std::unique_ptr<rpc::TlsIdentity::Watch> EndOnRevoked(grpc::ServerContext* context) const {
    const auto certificate = rpc::TlsIdentity::PeerOf(*context);
    if (certificate == nullptr) return nullptr;
    return std::make_unique<rpc::TlsIdentity::Watch>(options_.tls.get(), *certificate,
                                                     [context] { context->TryCancel(); });
  }

  grpc::Status Meant(const std::string& target_id) const {
    if (target_id.empty() || options_.node_id.empty() || target_id == options_.node_id)
      return grpc::Status::OK;
    return grpc::Status(
        grpc::StatusCode::FAILED_PRECONDITION,
        absl::StrCat("another daemon answers there: ", options_.name, " (identity ",
                     options_.node_id, "), meant was identity ", target_id.substr(0, kMaxNameBytes),
                     ". Two daemons advertise one address, or a port is forwarded to the wrong "
                     "host: give each daemon its own --advertise HOST:PORT"));
  }

  static absl::StatusOr<LinkHeader> HeaderOf(const grpc::ServerContext& context) {
    const auto found = context.client_metadata().find(kLinkHeaderKey);
    if (found == context.client_metadata().end()) return LinkHeader();
    return ParseLinkHeader({found->second.data(), found->second.size()});
  }

  // Who dials is who its certificate says.
  static grpc::Status Own(const grpc::ServerContext& context, const std::string& from_node_id) {
    const auto certificate = rpc::TlsIdentity::PeerOf(context);
    if (certificate == nullptr || certificate->who.name == from_node_id) return grpc::Status::OK;
    return rpc::ToGrpc(absl::PermissionDeniedError(
        absl::StrCat("the certificate is that of node ", certificate->who.name,
                     ", the link that of node ", from_node_id.substr(0, kMaxNameBytes))));
  }

  template <typename F>
  grpc::Status OneOfFew(F probe) {
    if (probes_.fetch_add(1) >= kMaxProbes) {
      probes_.fetch_sub(1);
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          absl::StrCat(kMaxProbes, " probes or copies run already"));
    }
    const grpc::Status status = probe();
    probes_.fetch_sub(1);
    return status;
  }

  grpc::Status SendDownload(grpc::ServerContext* context, const ProbeRequest& request,
                            grpc::ServerWriter<ProbeReply>* writer) {
    if (const grpc::Status other = Meant(request.target_id()); !other.ok()) return other;
    if (request.reply_bytes() < 1 || request.reply_bytes() > kMaxUploadBytes) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                          absl::StrCat("reply_bytes must be 1 to ", kMaxUploadBytes));
    }
    Watchdog::Watch watch(options_.watchdog, kMaxUploadTime, [context] { context->TryCancel(); });
    const int64_t message_bytes = ProbeMessageBytes(request.reply_bytes());
    ProbeReply message;
    message.mutable_padding()->resize(static_cast<size_t>(message_bytes));
    for (int64_t left = request.reply_bytes(); left > 0; left -= message_bytes) {
      if (!writer->Write(message))
        return grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone");
    }
    return grpc::Status::OK;
  }

  grpc::Status ReceiveUpload(grpc::ServerContext* context, grpc::ServerReader<ProbeRequest>* reader,
                             ProbeReply* reply) {
    Watchdog::Watch watch(options_.watchdog, kMaxUploadTime, [context] { context->TryCancel(); });
    ProbeRequest message;
    ArrivalLog log;
    const Clock::time_point start = Clock::now();
    while (reader->Read(&message)) {
      if (const grpc::Status other = Meant(message.target_id()); !other.ok()) return other;
      log.Add(static_cast<int64_t>(message.ByteSizeLong()),
              std::chrono::duration<double>(Clock::now() - start).count());
      if (log.bytes() > kMaxUploadBytes) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            absl::StrCat("an upload may have ", kMaxUploadBytes, " bytes"));
      }
    }
    const RateSearch::Round round = log.Round();
    reply->set_received_bytes(log.bytes());
    reply->set_elapsed_s(round.elapsed_s);
    reply->set_tail_bytes(round.tail_bytes);
    reply->set_tail_s(round.tail_s);
    return grpc::Status::OK;
  }

  const PeerServerOptions options_;
  std::atomic<int> probes_{0};
};

class GrpcPeerServer : public PeerServer {
 public:
  explicit GrpcPeerServer(const PeerServerOptions& options)
      : options_(options), service_(options) {}
  ~GrpcPeerServer() override { GrpcPeerServer::Shutdown(); }

  absl::Status Listen() {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder, options_.window_bytes);
    builder.AddListeningPort(options_.listen,
                             options_.tls == nullptr ? grpc::InsecureServerCredentials()
                                                     : options_.tls->ForServer(kCalls),
                             &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("--listen: can't listen on ", options_.listen,
                       ": the port is taken or the address is not of this host"));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Shutdown() override {
    if (server_ == nullptr) return;
    options_.board->Shutdown(absl::UnavailableError("the daemon is ending"));
    server_->Shutdown(rpc::DeadlineAfter(kShutdownGrace));
    server_.reset();
  }

 private:
  const PeerServerOptions options_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

absl::Span<const rpc::AllowedCall> AllowedPeerCalls() { return kCalls; }

absl::StatusOr<std::unique_ptr<PeerServer>> PeerServer::Start(const PeerServerOptions& options) {
  auto server = std::make_unique<GrpcPeerServer>(options);
  const absl::Status status = server->Listen();
  if (!status.ok()) return status;
  return std::unique_ptr<PeerServer>(std::move(server));
}

}  // namespace isthmus::daemon
