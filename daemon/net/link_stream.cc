#include "daemon/net/link_stream.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/rpc/tls_identity.h"
#include "daemon/net/link_error.h"
#include "grpc/grpc.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
#include "proto/peer_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

grpc::ClientContext* WithHeader(grpc::ClientContext* context, const LinkHeader& header) {
  const std::string text = LinkHeaderText(header);
  if (!text.empty()) context->AddMetadata(kLinkHeaderKey, text);
  return context;
}

class ClientStream : public LinkStream {
 public:
  ClientStream(const std::shared_ptr<grpc::Channel>& channel,
               std::shared_ptr<const rpc::TlsIdentity> tls, const LinkHeader& header)
      : tls_(std::move(tls)),
        stub_(Peer::NewStub(channel)),
        stream_(stub_->Link(WithHeader(&context_, header))) {}

  ~ClientStream() override {
    context_.TryCancel();  // of no effect after End
    ClientStream::End(absl::OkStatus()).IgnoreError();
  }

  bool Read(LinkChunk* chunk) override {
    if (!stream_->Read(chunk)) return false;
    if (tls_ == nullptr || watch_ != nullptr) return true;
    const auto there = rpc::TlsIdentity::ServerOf(context_);  // once it has answered
    if (there == nullptr) return false;
    watch_ = std::make_unique<rpc::TlsIdentity::Watch>(tls_.get(), *there,
                                                       [this, who = there->who] { Revoked(who); });
    MutexLock lock(&mutex_);
    return revoked_.ok();
  }
  bool Write(const LinkChunk& chunk) override { return stream_->Write(chunk); }
  void Kill(const absl::Status& why) override { context_.TryCancel(); }
  bool kill_tells_why() const override { return false; }

  absl::Status WhyBroken() override {
    std::call_once(ended_, [this] { Finish(); });
    // OutOfRange is the orderly end of a link: a peer can't claim it with a status.
    {
      MutexLock lock(&mutex_);
      if (!revoked_.ok()) return revoked_;
    }
    if (result_.ok() || absl::IsOutOfRange(result_))
      return absl::UnavailableError("the peer closed the link too early");
    return result_;
  }

  // gRPC says Unavailable of a connection that broke, and Unknown of one that it has just removed.
  bool may_resume() override {
    MutexLock lock(&mutex_);
    return revoked_.ok() && !told_ &&
           (absl::IsUnavailable(result_) ||
            (absl::IsUnknown(result_) && result_.message() == "Stream removed"));
  }

  LinkHeader peer_header() const override {
    const auto& said = context_.GetServerInitialMetadata();
    const auto found = said.find(kLinkHeaderKey);
    if (found == said.end()) return {};
    return ParseLinkHeader({found->second.data(), found->second.size()}).value_or(LinkHeader());
  }

  absl::Status End(const absl::Status& mine) override {
    std::call_once(ended_, [this] {
      stream_->WritesDone();
      Finish();
    });
    return result_;
  }

 private:
  void Finish() {
    const grpc::Status status = stream_->Finish();
    const absl::Status said = rpc::FromGrpc(status);
    told_ = rpc::Answered(status) || IsTold(said);
    result_ = FromTrailer(said);
  }
  void Revoked(const tls::Identity& who) {
    {
      MutexLock lock(&mutex_);
      revoked_ = absl::UnauthenticatedError(
          absl::StrCat("the certificate of ", tls::Words(who), " at the other end is revoked"));
    }
    context_.TryCancel();
  }

  Mutex mutex_;
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<const rpc::TlsIdentity> tls_;
  grpc::ClientContext context_;
  std::unique_ptr<rpc::TlsIdentity::Watch> watch_;  // the reader's; goes before the context
  std::unique_ptr<Peer::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<LinkChunk, LinkChunk>> stream_;
  std::once_flag ended_;
  absl::Status result_;  // these two are written under ended_
  bool told_ = false;    // the other program ended the call, with result_
};

class ServerStream : public LinkStream {
 public:
  ServerStream(std::shared_ptr<ServerCall> call, const LinkHeader& header)
      : call_(std::move(call)) {
    const std::string text = LinkHeaderText(header);
    if (!text.empty() && call_->context != nullptr)
      call_->context->AddInitialMetadata(kLinkHeaderKey, text);
  }
  ~ServerStream() override {
    ServerStream::End(absl::CancelledError("the link was dropped")).IgnoreError();
  }

  bool Read(LinkChunk* chunk) override { return call_->stream->Read(chunk); }
  bool Write(const LinkChunk& chunk) override { return call_->stream->Write(chunk); }

  // ServerContext::TryCancel would send a fixed message instead of `why`.
  void Kill(const absl::Status& why) override { Cancel(ToTrailer(why)); }
  void Drop() override { Cancel(absl::UnavailableError("the serving end lost the connection")); }
  bool kill_tells_why() const override { return true; }
  bool may_resume() override { return true; }  // a peer that went away is not to be told from one
  LinkHeader peer_header() const override { return call_->header; }

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
  void Cancel(const absl::Status& with) {
    const grpc::Status status = rpc::ToGrpc(with);
    MutexLock lock(&call_->mutex);
    if (call_->ended) return;
    grpc_call_cancel_with_status(call_->context->c_call(),
                                 static_cast<grpc_status_code>(status.error_code()),
                                 status.error_message().c_str(), nullptr);
  }

  const std::shared_ptr<ServerCall> call_;
};

}  // namespace

std::unique_ptr<LinkStream> DialLinkStream(std::shared_ptr<grpc::Channel> channel,
                                           std::shared_ptr<const rpc::TlsIdentity> tls,
                                           const LinkHeader& header) {
  return std::make_unique<ClientStream>(std::move(channel), std::move(tls), header);
}

std::unique_ptr<LinkStream> ServeLinkStream(std::shared_ptr<ServerCall> call,
                                            const LinkHeader& header) {
  return std::make_unique<ServerStream>(std::move(call), header);
}

}  // namespace isthmus::daemon
