#include "daemon/probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/peer_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

using Clock = std::chrono::system_clock;  // gRPC's deadlines

constexpr std::chrono::milliseconds kLookAgain{200};
constexpr int64_t kMinMessageBytes = 1 << 10;
constexpr int64_t kMaxMessageBytes = 64 << 10;
constexpr int kMessagesARound = 16;  // at least
constexpr double kGrowFast = 4;      // next round, while rounds are short
constexpr double kShortSeconds = 0.2;

double SecondsLeft(Clock::time_point deadline) {
  return std::chrono::duration<double>(deadline - Clock::now()).count();
}

}  // namespace

int64_t RateSearch::NextBytes(double seconds_left) const {
  if (last_bytes_ == 0) return seconds_left > 0 ? kFirstBytes : 0;
  const bool long_enough = last_elapsed_s_ >= kEnoughSeconds;
  const bool big_enough = last_bytes_ >= kEnoughBytes && !growing_;
  if (long_enough || big_enough || last_bytes_ >= kMaxBytes) return 0;
  const double factor = last_elapsed_s_ < kShortSeconds ? kGrowFast : 2;
  const int64_t next =
      std::min<int64_t>(static_cast<int64_t>(static_cast<double>(last_bytes_) * factor), kMaxBytes);
  if (rate_ > 0 && static_cast<double>(next) * 8 / rate_ > seconds_left) return 0;
  return next;
}

// What a link can have that needs `sender_s` for `bytes`: slow start, at its longest, doubles from
// the first window to all of them, and the last byte and the answer take a round trip.
double RateSearch::MostBitsPerSecond(int64_t bytes, double sender_s) const {
  const double doublings = std::log2(std::max(1.0, static_cast<double>(bytes) / kFirstWindowBytes));
  const double sending_s = sender_s - round_trip_s_ * (2 + doublings);
  return sending_s > 0 ? 8.0 * static_cast<double>(bytes) / sending_s
                       : std::numeric_limits<double>::infinity();
}

void RateSearch::Add(const Round& round) {
  if (round.tail_bytes <= 0) return;
  const double rate =
      std::min(8.0 * static_cast<double>(round.tail_bytes) / std::max(round.tail_s, 1e-6),
               MostBitsPerSecond(round.received_bytes, round.sender_s));
  growing_ = rate > rate_ * kSteady;
  rate_ = rate;  // the longest round counts: short ones show slow start or a bucket's burst
  last_bytes_ = round.received_bytes;
  last_elapsed_s_ = round.elapsed_s;
}

void RateSearch::AddUnfinished(int64_t bytes, double spent_s) {
  rate_ = std::min(rate_, MostBitsPerSecond(bytes, spent_s));
}

void ArrivalLog::Add(int64_t bytes, double at_s) {
  const int64_t sum = this->bytes() + bytes;
  if (entries_.size() < kMaxEntries) {
    entries_.push_back({sum, at_s});
  } else {
    entries_.back() = {sum, at_s};
  }
}

RateSearch::Round ArrivalLog::Round() const {
  RateSearch::Round round;
  if (entries_.size() < 2) return round;
  round.received_bytes = bytes();
  round.elapsed_s = entries_.back().at_s - entries_.front().at_s;
  size_t half = 0;
  while (half + 2 < entries_.size() && entries_[half].bytes < bytes() / 2) ++half;
  round.tail_bytes = bytes() - entries_[half].bytes;
  round.tail_s = entries_.back().at_s - entries_[half].at_s;
  return round;
}

class Prober::Call {
 public:
  Call(Prober* prober, Clock::time_point deadline) : prober_(prober) {
    context_.set_deadline(deadline);
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
  const auto start = Clock::now();
  const auto deadline = start + absl::ToChronoMilliseconds(options.budget);
  const auto connect_by = std::min(deadline, start + absl::ToChronoMilliseconds(options.connect));
  rpc::ChannelOptions channel_options;
  channel_options.use_proxy = options.use_proxy;
  const auto channel = rpc::MakeChannel(peer.address(), channel_options);
  while (!channel->WaitForConnected(std::min(connect_by, Clock::now() + kLookAgain))) {
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
  while (const int64_t bytes = search.NextBytes(SecondsLeft(deadline) - best_s)) {
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
