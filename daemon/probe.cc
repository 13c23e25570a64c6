#include "daemon/probe.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/link_rate.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/peer_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kLookAgain = absl::Milliseconds(200);
constexpr int64_t kMinMessageBytes = 1 << 10;
constexpr int64_t kMaxMessageBytes = 64 << 10;
constexpr int kMessagesARound = 16;  // at least

absl::Duration Left(Clock::time_point deadline) {
  return absl::FromChrono(deadline - Clock::now());
}

}  // namespace

class Prober::Call {
 public:
  Call(Prober* prober, Clock::time_point deadline) : prober_(prober) {
    context_.set_deadline(rpc::DeadlineAfter(Left(deadline)));
    MutexLock lock(&prober_->mutex_);
    prober_->running_ = &context_;
    if (prober_->cancelled_) context_.TryCancel();
  }
  ~Call() {
    MutexLock lock(&prober_->mutex_);
    prober_->running_ = nullptr;
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  Prober* const prober_;
  grpc::ClientContext context_;
};

void Prober::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  if (running_ != nullptr) running_->TryCancel();
}

bool Prober::cancelled() const {
  MutexLock lock(&mutex_);
  return cancelled_;
}

namespace {

// One upload; OK with an unchanged search if the peer saw too little.
template <typename Context>
absl::Status UploadRound(Peer::Stub* stub, Context* context, int64_t bytes, RateSearch* search) {
  const int64_t message_bytes =
      std::clamp(bytes / kMessagesARound, kMinMessageBytes, kMaxMessageBytes);
  const int64_t messages = bytes / message_bytes;
  ProbeRequest request;
  request.mutable_padding()->resize(static_cast<size_t>(message_bytes));
  ProbeReply reply;
  const auto start = std::chrono::steady_clock::now();
  const auto spent_s = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto writer = stub->Upload(context, &reply);
  for (int64_t i = 0; i < messages; ++i) {
    if (!writer->Write(request)) break;
  }
  writer->WritesDone();
  if (const absl::Status status = rpc::FromGrpc(writer->Finish()); !status.ok()) {
    search->AddUnfinished(messages * message_bytes, spent_s());
    return status;
  }
  search->Add(
      {reply.received_bytes(), reply.elapsed_s(), reply.tail_bytes(), reply.tail_s(), spent_s()});
  return absl::OkStatus();
}

}  // namespace

LinkMeasurement Prober::Measure(const std::string& my_id, const NodeInfo& peer,
                                const ProbeOptions& options) {
  LinkMeasurement result;
  result.set_from_id(my_id);
  result.set_to_id(peer.id());
  const auto failed = [&](absl::string_view why) {
    result.set_error(absl::StrCat("node ", peer.name(), " at ", peer.address(), ": ", why));
    return result;
  };
  if (const absl::Status status = rpc::CheckAddress("address", peer.address()); !status.ok())
    return failed(status.message());
  if (cancelled()) return failed("the measurement was cancelled");
  const auto deadline = SteadyAfter(options.budget);
  const auto connect_by = SteadyAfter(std::min(options.budget, options.connect));
  rpc::ChannelOptions channel_options;
  channel_options.use_proxy = options.use_proxy;
  const auto channel = rpc::MakeChannel(peer.address(), channel_options);
  while (!channel->WaitForConnected(rpc::DeadlineAfter(std::min(kLookAgain, Left(connect_by))))) {
    if (cancelled()) return failed("the measurement was cancelled");
    if (Clock::now() >= connect_by) {
      return failed(absl::StrCat("no connection within ",
                                 absl::FormatDuration(std::min(options.connect, options.budget)),
                                 ": check that the daemon runs there and that its port is open"));
    }
  }
  const auto stub = Peer::NewStub(channel);
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < options.echos + 1; ++i) {  // the first one warms up
    Call call(this, deadline);
    ProbeReply reply;
    const auto before = std::chrono::steady_clock::now();
    const absl::Status status = rpc::FromGrpc(stub->Echo(call.context(), ProbeRequest(), &reply));
    if (!status.ok()) return failed(absl::StrCat("echo: ", status.ToString()));
    if (i > 0)
      best_s = std::min(
          best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  result.set_round_trip_s(best_s);
  RateSearch search(best_s);
  while (const int64_t bytes = search.NextBytes(absl::ToDoubleSeconds(Left(deadline)) - best_s)) {
    Call call(this, deadline);
    const absl::Status status = UploadRound(stub.get(), call.context(), bytes, &search);
    if (!status.ok() && search.rate_bits_per_s() == 0)
      return failed(absl::StrCat("upload: ", status.ToString()));
    if (!status.ok()) break;  // out of time: the earlier rounds count
  }
  if (cancelled()) return failed("the measurement was cancelled");
  result.set_rate_bits_per_s(search.rate_bits_per_s());
  return result;
}

}  // namespace isthmus::daemon
