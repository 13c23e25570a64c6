#include "daemon/revoked_watch.h"

#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/security_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);  // of one call
constexpr absl::Duration kDialAgain = absl::Seconds(30);

}  // namespace

RevokedWatch::RevokedWatch(RevokedWatchOptions options) : options_(std::move(options)) {
  thread_ = options_.health->Spawn("revoked", [this] { Loop(); });
}

RevokedWatch::~RevokedWatch() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    if (running_ != nullptr) running_->TryCancel();
    changed_.SignalAll();
  }
  thread_.join();
}

void RevokedWatch::Loop() {
  const auto dial = [this] {
    return Security::NewStub(
        rpc::MakeChannel(options_.coordinator, rpc::ToCoordinator(options_.dialling)));
  };
  auto stub = dial();
  absl::Time dialled = SteadyNow();
  for (;;) {
    // Another channel shows the certificate of this daemon that holds now.
    if (!Ask(stub.get()) && SteadyNow() - dialled > kDialAgain) {
      stub = dial();
      dialled = SteadyNow();
    }
    const auto next = SteadyAfter(options_.every);
    MutexLock lock(&mutex_);
    while (!stop_ && changed_.WaitUntil(&mutex_, next)) {
    }
    if (stop_) return;
  }
}

bool RevokedWatch::Ask(Security::StubInterface* stub) {
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineAfter(kPatience));
  {
    MutexLock lock(&mutex_);
    if (stop_) return true;
    running_ = &context;
  }
  RevokedRequest request;
  request.set_have(Hash64(options_.tls->revoked_pem()));
  RevokedReply reply;
  const bool answered =
      stub->Revoked(&context, request, &reply).ok() && options_.tls->CheckServer(context).ok();
  {
    MutexLock lock(&mutex_);
    running_ = nullptr;
  }
  if (!answered || reply.same()) return answered;  // what else is amiss the daemon's stream tells
  const absl::Status set = options_.tls->SetRevoked(reply.pem());
  if (!set.ok()) LogError("the coordinator's list is of no use: ", set.message());
  return true;
}

}  // namespace isthmus::daemon
