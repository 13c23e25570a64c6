#include "worker/link/memory_link.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace isthmus::worker {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kDefaultWindowBytes = int64_t{4} << 20;

}  // namespace

// Both directions of one link. Direction d is sent by end d (0: lower stage, 1: upper).
class MemoryChannel {
 public:
  explicit MemoryChannel(const MemoryLinkOptions& options) : options_(options) {}

  absl::Status Send(int end, Frame frame, absl::Duration timeout) {
    const int64_t bytes = frame.header.ByteSizeLong() + frame.payload.size();
    const auto deadline = SteadyAfter(timeout);
    MutexLock lock(&mutex_);
    Direction& d = directions_[end];
    for (;;) {
      if (!error_[end].ok()) return error_[end];
      if (d.finished) return absl::FailedPreconditionError("send after Finish");
      // A frame larger than the window may go alone, as a stream passes it piece by piece.
      if (d.in_flight_bytes == 0 || d.in_flight_bytes + bytes <= options_.window_bytes) break;
      // Bytes that have arrived leave the window when the reader takes them.
      if (!changed_.WaitUntil(&mutex_, deadline))
        return End(end,
                   absl::DeadlineExceededError("no progress in sending: the window stayed full"));
    }
    d.last_departure = std::max(Clock::now(), d.last_departure);
    if (options_.rate_bits_per_s > 0) {
      d.last_departure += std::chrono::nanoseconds(
          static_cast<int64_t>(8e9 * static_cast<double>(bytes) / options_.rate_bits_per_s));
    }
    d.frames.push_back(
        {std::move(frame), bytes, d.last_departure + absl::ToChronoNanoseconds(options_.delay)});
    d.in_flight_bytes += bytes;
    d.wire_bytes += bytes;
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::StatusOr<Frame> Receive(int end, int64_t max_payload_bytes, absl::Duration timeout) {
    const auto deadline = SteadyAfter(timeout);
    MutexLock lock(&mutex_);
    Direction& d = directions_[1 - end];
    for (;;) {
      if (!error_[end].ok()) return error_[end];
      const bool arrived = !d.frames.empty() && d.frames.front().arrival <= Clock::now();
      if (arrived) break;
      if (d.frames.empty() && d.finished) return absl::OutOfRangeError("the peer finished");
      const auto wake = d.frames.empty() ? deadline : std::min(deadline, d.frames.front().arrival);
      changed_.WaitUntil(&mutex_, wake);
      if (Clock::now() >= deadline) return End(end, absl::DeadlineExceededError("nothing arrived"));
    }
    Moving& moving = d.frames.front();
    if (static_cast<int64_t>(moving.frame.payload.size()) > max_payload_bytes) {
      return End(end, absl::DataLossError(absl::StrCat("a payload of ", moving.frame.payload.size(),
                                                       " bytes where at most ", max_payload_bytes,
                                                       " are due")));
    }
    Frame frame = std::move(moving.frame);
    frame.begun = Clock::now();
    d.in_flight_bytes -= moving.bytes;
    d.frames.pop_front();
    changed_.SignalAll();
    return frame;
  }

  void Cancel(int end, absl::Status why) {
    MutexLock lock(&mutex_);
    End(end, std::move(why)).IgnoreError();
  }

  absl::Status Finish(int end, absl::Duration timeout) {
    const auto deadline = SteadyAfter(timeout);
    MutexLock lock(&mutex_);
    Direction& d = directions_[end];
    d.finished = true;
    changed_.SignalAll();
    while (!d.frames.empty()) {
      if (!error_[end].ok()) return error_[end];
      if (!changed_.WaitUntil(&mutex_, deadline))
        return absl::DeadlineExceededError("the peer did not take what was sent");
    }
    return error_[end];
  }

  int64_t wire_bytes(int end) const {
    MutexLock lock(&mutex_);
    return directions_[end].wire_bytes;
  }

 private:
  struct Moving {
    Frame frame;
    int64_t bytes = 0;
    Clock::time_point arrival;
  };
  struct Direction {
    std::deque<Moving> frames;
    int64_t in_flight_bytes = 0;
    int64_t wire_bytes = 0;
    bool finished = false;
    Clock::time_point last_departure{};
  };

  // The first error of either end is final for both; the peer learns the reason.
  absl::Status End(int end, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (why.ok()) why = absl::CancelledError("done");
    if (error_[end].ok()) {
      if (error_[1 - end].ok()) error_[1 - end] = Annotate(why, "the peer ended the link");
      error_[end] = std::move(why);
    }
    changed_.SignalAll();
    return error_[end];
  }

  const MemoryLinkOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  Direction directions_[2] ABSL_GUARDED_BY(mutex_);
  absl::Status error_[2] ABSL_GUARDED_BY(mutex_);
};

namespace {

class MemoryLink : public Link {
 public:
  MemoryLink(std::shared_ptr<MemoryChannel> channel, int end)
      : channel_(std::move(channel)), end_(end) {}
  ~MemoryLink() override {
    channel_->Cancel(end_, absl::UnavailableError("the link was destroyed"));
  }

  absl::Status Send(Frame frame, absl::Duration timeout) override {
    return channel_->Send(end_, std::move(frame), timeout);
  }
  absl::StatusOr<Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) override {
    return channel_->Receive(end_, max_payload_bytes, timeout);
  }
  void Cancel(absl::Status why) override { channel_->Cancel(end_, std::move(why)); }
  absl::Status Finish(absl::Duration timeout) override { return channel_->Finish(end_, timeout); }
  bool peer_exchanges_codec_state() const override { return true; }
  int64_t wire_bytes_sent() const override { return channel_->wire_bytes(end_); }

 private:
  const std::shared_ptr<MemoryChannel> channel_;
  const int end_;
};

absl::Status OtherGeneration(const LinkPlan& link, uint64_t theirs, uint64_t mine) {
  return absl::FailedPreconditionError(absl::StrCat(
      "link ", link.id(), ": the peer is at generation ", theirs, ", this end at ", mine));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> MemoryLinkHub::Open(const Plan& plan, const LinkPlan& link,
                                                          int my_rank, absl::Duration timeout) {
  const int end = my_rank == link.lower() ? 0 : 1;
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  Waiter*& waiting = waiting_[{plan.job_id(), link.id()}];
  if (waiting != nullptr && waiting->generation != plan.generation()) {
    if (waiting->generation > plan.generation())
      return OtherGeneration(link, waiting->generation, plan.generation());
    waiting->newer_generation = plan.generation();
    waiting = nullptr;
    changed_.SignalAll();
  }
  if (waiting != nullptr && waiting->rank == my_rank) {
    return absl::AlreadyExistsError(
        absl::StrCat("link ", link.id(), ": this end is being opened already"));
  }
  if (waiting != nullptr) {
    std::shared_ptr<MemoryChannel> channel = waiting->channel;
    waiting->joined = true;
    waiting = nullptr;
    changed_.SignalAll();
    return std::make_unique<MemoryLink>(std::move(channel), end);
  }
  MemoryLinkOptions options = options_;
  if (options.window_bytes <= 0)
    options.window_bytes = link.window_bytes() > 0 ? link.window_bytes() : kDefaultWindowBytes;
  Waiter me{plan.generation(), my_rank, std::make_shared<MemoryChannel>(options)};
  waiting = &me;
  while (!me.joined && me.newer_generation == 0) {
    if (changed_.WaitUntil(&mutex_, deadline)) continue;
    if (me.joined || me.newer_generation != 0) break;
    waiting_[{plan.job_id(), link.id()}] = nullptr;
    const int peer = end == 0 ? link.upper() : link.lower();
    const std::string address = peer < plan.ranks_size() ? plan.ranks(peer).address() : "";
    return absl::UnavailableError(absl::StrCat("link ", link.id(), ": rank ", peer, " (", address,
                                               ") did not come within ",
                                               absl::FormatDuration(timeout)));
  }
  if (me.newer_generation != 0)
    return OtherGeneration(link, me.newer_generation, plan.generation());
  return std::make_unique<MemoryLink>(me.channel, end);
}

}  // namespace isthmus::worker
