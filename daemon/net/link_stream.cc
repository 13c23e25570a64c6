#include "daemon/net/link_stream.h"

#include <mutex>
#include <utility>

#include "base/rpc/channel.h"
#include "daemon/net/link_error.h"
#include "grpc/grpc.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
#include "proto/peer_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

class ClientStream : public LinkStream {
 public:
  explicit ClientStream(std::shared_ptr<grpc::Channel> channel)
      : stub_(Peer::NewStub(channel)), stream_(stub_->Link(&context_)) {}

  ~ClientStream() override {
    context_.TryCancel();  // of no effect after End
    ClientStream::End(absl::OkStatus()).IgnoreError();
  }

  bool Read(LinkChunk* chunk) override { return stream_->Read(chunk); }
  bool Write(const LinkChunk& chunk) override { return stream_->Write(chunk); }
  void Kill(const absl::Status& why) override { context_.TryCancel(); }
  bool kill_tells_why() const override { return false; }

  absl::Status WhyBroken() override {
    std::call_once(ended_, [this] { result_ = FromTrailer(rpc::FromGrpc(stream_->Finish())); });
    // OutOfRange is the orderly end of a link: a peer can't claim it with a status.
    if (result_.ok() || absl::IsOutOfRange(result_))
      return absl::UnavailableError("the peer closed the link too early");
    return result_;
  }

  absl::Status End(const absl::Status& mine) override {
    std::call_once(ended_, [this] {
      stream_->WritesDone();
      result_ = FromTrailer(rpc::FromGrpc(stream_->Finish()));
    });
    return result_;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<Peer::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<LinkChunk, LinkChunk>> stream_;
  std::once_flag ended_;
  absl::Status result_;  // written under ended_
};

class ServerStream : public LinkStream {
 public:
  explicit ServerStream(std::shared_ptr<ServerCall> call) : call_(std::move(call)) {}
  ~ServerStream() override {
    ServerStream::End(absl::CancelledError("the link was dropped")).IgnoreError();
  }

  bool Read(LinkChunk* chunk) override { return call_->stream->Read(chunk); }
  bool Write(const LinkChunk& chunk) override { return call_->stream->Write(chunk); }

  // ServerContext::TryCancel would send a fixed message instead of `why`.
  void Kill(const absl::Status& why) override {
    const grpc::Status status = rpc::ToGrpc(ToTrailer(why));
    MutexLock lock(&call_->mutex);
    if (call_->ended) return;
    grpc_call_cancel_with_status(call_->context->c_call(),
                                 static_cast<grpc_status_code>(status.error_code()),
                                 status.error_message().c_str(), nullptr);
  }
  bool kill_tells_why() const override { return true; }

  absl::Status WhyBroken() override {
    return absl::UnavailableError("the connection broke, or the peer ended without saying why");
  }

  absl::Status End(const absl::Status& mine) override {
    MutexLock lock(&call_->mutex);
    if (!call_->ended) {
      call_->result = mine;
      call_->ended = true;
      call_->changed.SignalAll();
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<ServerCall> call_;
};

}  // namespace

std::unique_ptr<LinkStream> DialLinkStream(std::shared_ptr<grpc::Channel> channel) {
  return std::make_unique<ClientStream>(std::move(channel));
}

std::unique_ptr<LinkStream> ServeLinkStream(std::shared_ptr<ServerCall> call) {
  return std::make_unique<ServerStream>(std::move(call));
}

}  // namespace isthmus::daemon
