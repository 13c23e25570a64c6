#include "daemon/net/redialler.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "grpcpp/channel.h"

namespace isthmus::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kTry = absl::Seconds(3);  // to connect and exchange hellos, or to ask
constexpr absl::Duration kFirstWait = absl::Milliseconds(200);  // doubling, between two dials
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kBeforeAsking = absl::Milliseconds(100);  // mostly both ends notice
constexpr absl::Duration kAskAgain = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);  // for Cancel
constexpr uint64_t kNoAttempt = ~uint64_t{0};                   // an ask that nobody is woken for
constexpr absl::Duration kSettled = absl::Seconds(1);  // what breaks sooner is not dialled at once

// The host is there and says that nobody listens.
bool Refused(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), "Connection refused");
}

absl::Duration Left(Clock::time_point deadline) {
  return absl::FromChrono(deadline - Clock::now());
}

// What both ends need: a place on the board, calls that Cancel ends, waits that it ends.
class Base : public Redialler {
 public:
  explicit Base(RedialOptions options)
      : options_(std::move(options)), place_(options_.board, Redials::KeyOf(FromPeer(options_))) {}

  void OnInterrupt(Interrupt interrupt) override { place_.OnInterrupt(std::move(interrupt)); }

  void Cancel() override {
    place_.Cancel();
    MutexLock lock(&mutex_);
    cancelled_ = true;
    changed_.SignalAll();
    if (calling_ != nullptr) calling_->Kill(absl::CancelledError(""));
  }

 protected:
  // A call with `header` and the hello, and its answer; the stream where there is one.
  absl::StatusOr<std::unique_ptr<LinkStream>> Call(const LinkHeader& header,
                                                   Clock::time_point deadline, LinkHello* answer) {
    const auto give_up = std::min(deadline, SteadyAfter(kTry));
    const auto channel = rpc::MakeChannel(options_.address, options_.channel);
    RETURN_IF_ERROR(Connect(channel.get(), give_up));
    auto stream = DialLinkStream(channel, options_.channel.dialling.tls, header);
    {
      MutexLock lock(&mutex_);
      if (cancelled_) return Ended();
      calling_ = stream.get();
    }
    LinkChunk chunk;
    *chunk.mutable_hello() = options_.hello;
    bool late = false;
    bool ok = false;
    {
      Watchdog::Watch watch(options_.watchdog, Left(give_up), [&] {
        late = true;
        stream->Kill(absl::CancelledError(""));
      });
      ok = stream->Write(chunk) && stream->Read(&chunk);
    }
    {
      MutexLock lock(&mutex_);
      calling_ = nullptr;
      if (cancelled_) return Ended();
    }
    if (late) return NoAnswer();
    if (!ok) {
      const absl::Status why = stream->WhyBroken();
      if (Refused(why)) return absl::FailedPreconditionError("nobody listens there");
      if (stream->may_resume() || absl::IsNotFound(why)) return why;
      return absl::FailedPreconditionError(why.message());  // final, whatever its code was
    }
    *answer = chunk.hello();
    return stream;
  }

  bool Wait(absl::Duration pause) {  // false: cancelled
    const auto until = SteadyAfter(pause);
    MutexLock lock(&mutex_);
    while (!cancelled_ && changed_.WaitUntil(&mutex_, until)) {
    }
    return !cancelled_;
  }

  static absl::Status GaveUp(absl::Duration patience, absl::string_view last) {
    return absl::UnavailableError(
        absl::StrCat("not mended within ", absl::FormatDuration(patience), " (", last, ")"));
  }

  const RedialOptions options_;
  Redials::Place place_;

 private:
  static absl::Status Ended() { return absl::CancelledError("the link has ended"); }
  absl::Status NoAnswer() const {
    return absl::UnavailableError(absl::StrCat("no answer of ", options_.address));
  }

  // Until the channel is there, or known not to be: a call fails at once then, and says why. A call
  // that began before could not be ended.
  absl::Status Connect(grpc::Channel* channel, Clock::time_point deadline) {
    while (true) {
      const grpc_connectivity_state state = channel->GetState(true);
      if (state == GRPC_CHANNEL_READY || state == GRPC_CHANNEL_TRANSIENT_FAILURE)
        return absl::OkStatus();
      {
        MutexLock lock(&mutex_);
        if (cancelled_) return Ended();
      }
      if (Clock::now() >= deadline) return NoAnswer();
      channel->WaitForStateChange(state, rpc::DeadlineAfter(std::min(kLookAgain, Left(deadline))));
    }
  }

  static LinkHello FromPeer(const RedialOptions& options) {
    LinkHello hello = options.hello;
    hello.set_from_node_id(options.peer_node_id);
    return hello;
  }

  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  LinkStream* calling_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

class Dialler : public Base {
 public:
  using Base::Base;

  absl::StatusOr<Connection> Redial(uint64_t received) override {
    const auto deadline = SteadyAfter(options_.patience);
    absl::Duration pause = absl::ZeroDuration();
    if (absl::FromChrono(Clock::now() - mended_) < kSettled) pause = kFirstWait;
    while (Wait(pause)) {
      LinkHeader header{LinkHeader::kRedial, ++attempt_, received};
      LinkHello answer;
      absl::StatusOr<std::unique_ptr<LinkStream>> stream = Call(header, deadline, &answer);
      if (stream.ok()) {
        const LinkHeader there = (*stream)->peer_header();
        if (there.kind != LinkHeader::kRedial || there.attempt != attempt_ ||
            answer.link_id() != options_.hello.link_id() ||
            answer.connection() != options_.hello.connection()) {
          return absl::InvalidArgumentError("the answer is not one to this dial");
        }
        place_.SetAttempt(attempt_);
        mended_ = Clock::now();
        return Connection{*std::move(stream), there.received};
      }
      if (!absl::IsUnavailable(stream.status()) && !absl::IsUnknown(stream.status()))
        return stream.status();
      if (Clock::now() >= deadline) return GaveUp(options_.patience, stream.status().message());
      pause = std::min({std::max(kFirstWait, 2 * pause), kLongestWait, Left(deadline)});
    }
    return absl::CancelledError("the link has ended");
  }

 private:
  uint64_t attempt_ = 0;
  Clock::time_point mended_{};
};

class Awaiter : public Base {
 public:
  using Base::Base;

  // NotFound is an answer, too: the other end opens the link at the same time.
  void Prepare() override {
    if (options_.reached == nullptr || options_.hello.connection() > 0) return;
    LinkHello ignored;
    const absl::Status asked =
        Call({LinkHeader::kAsk, kNoAttempt, 0}, SteadyAfter(kTry), &ignored).status();
    if (asked.ok() || absl::IsNotFound(asked)) *options_.reached = true;
  }

  absl::StatusOr<Connection> Redial(uint64_t received) override {
    const bool asks = options_.reached != nullptr && *options_.reached;
    const auto deadline = SteadyAfter(options_.patience);
    absl::Duration patience = asks ? kBeforeAsking : options_.patience;
    std::string last = "it did not dial";
    while (true) {
      auto call = place_.Await(std::min(deadline, SteadyAfter(patience)));
      if (call.ok()) {
        attempt_ = (*call)->header.attempt;
        const uint64_t there = (*call)->header.received;
        auto stream = Answer(*std::move(call), received);
        if (stream != nullptr) return Connection{std::move(stream), there};
        continue;
      }
      if (!absl::IsDeadlineExceeded(call.status())) return call.status();
      if (Clock::now() >= deadline) return GaveUp(options_.patience, last);
      if (!asks) continue;
      LinkHello ignored;
      const absl::Status asked = Call({LinkHeader::kAsk, attempt_, 0}, deadline, &ignored).status();
      last = asked.ok() ? "it is there and did not dial" : std::string(asked.message());
      if (!asked.ok() && !absl::IsUnavailable(asked) && !absl::IsUnknown(asked)) return asked;
      patience = kAskAgain;
    }
  }

 private:
  // Null: that connection broke, too.
  std::unique_ptr<LinkStream> Answer(std::shared_ptr<ServerCall> call, uint64_t received) {
    auto stream = ServeLinkStream(std::move(call), {LinkHeader::kRedial, attempt_, received});
    LinkChunk answer;
    *answer.mutable_hello() = options_.hello;
    bool ok = false;
    {
      Watchdog::Watch watch(options_.watchdog, kTry, [&] { stream->Drop(); });
      ok = stream->Write(answer);
    }
    return ok ? std::move(stream) : nullptr;
  }

  uint64_t attempt_ = 0;
};

}  // namespace

std::unique_ptr<Redialler> DialAgain(RedialOptions options) {
  return std::make_unique<Dialler>(std::move(options));
}

std::unique_ptr<Redialler> AwaitDial(RedialOptions options) {
  return std::make_unique<Awaiter>(std::move(options));
}

}  // namespace isthmus::daemon
