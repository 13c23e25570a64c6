#include "daemon/net/uplink_gate.h"

#include <algorithm>

namespace isthmus::daemon {
namespace {

constexpr std::chrono::milliseconds kLookAgain{50};  // whether to stop

int64_t PieceBytes(double bytes_per_ns) {
  const std::chrono::nanoseconds piece = UplinkLine::kPiece;
  return std::max(UplinkLine::kLeastPieceBytes,
                  static_cast<int64_t>(bytes_per_ns * static_cast<double>(piece.count())));
}

}  // namespace

Lane LaneOf(const FrameHeader& header) {
  const FrameHeader::Kind kind = header.kind();
  const bool of_group =
      kind == FrameHeader::CONTRIBUTION || kind == FrameHeader::SUM || kind == FrameHeader::SLICE;
  return of_group && header.payload_bytes() > UplinkLine::kSmallBytes ? Lane::kExchange
                                                                      : Lane::kCritical;
}

UplinkLine::UplinkLine(int64_t rate_bits_per_s)
    : bytes_per_ns_(static_cast<double>(rate_bits_per_s) * kPayloadShare / 8e9),
      piece_bytes_(PieceBytes(bytes_per_ns_)) {}

std::chrono::nanoseconds UplinkLine::TimeOf(int64_t bytes) const {
  return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_ns_));
}

void UplinkLine::Send(Lane lane, int64_t bytes, Time now) {
  const std::chrono::nanoseconds time = TimeOf(bytes);
  free_ = std::min(std::max(free_, now) + time, now + kMostOwed);
  if (lane == Lane::kExchange) due_[1] = now + kExchangeWeight * time;
  if (lane == Lane::kCopy) due_[2] = now + kCopyWeight * time;
}

UplinkLine::Time UplinkLine::Next(Lane lane, bool exchange_waits) const {
  if (lane == Lane::kCritical) return Time{};
  const Time due = due_[static_cast<int>(lane)];
  if (lane == Lane::kCopy && exchange_waits) return due;
  return std::min(due, free_ - kAhead);
}

UplinkGate::UplinkGate(int64_t rate_bits_per_s)
    : rate_bits_per_s_(rate_bits_per_s), line_(std::max<int64_t>(1, rate_bits_per_s)) {}

int64_t UplinkGate::ChunkBytes(Lane lane, int64_t chunk_bytes) const {
  if (!on() || lane == Lane::kCritical) return chunk_bytes;
  MutexLock lock(&mutex_);
  return std::min(chunk_bytes, line_.piece_bytes());
}

bool UplinkGate::Pass(Lane lane, int64_t bytes, const std::function<bool()>& stop) {
  using Clock = std::chrono::steady_clock;
  if (!on()) return true;
  MutexLock lock(&mutex_);
  if (lane == Lane::kCritical) {
    line_.Send(lane, bytes, Clock::now());
    return true;
  }
  std::deque<int64_t>& waiting = waiting_[static_cast<int>(lane)];
  const std::deque<int64_t>& exchange = waiting_[static_cast<int>(Lane::kExchange)];
  const int64_t ticket = ++tickets_;
  waiting.push_back(ticket);
  bool passes = false;
  while (!passes && !stop()) {
    const auto now = Clock::now();
    auto look = now + kLookAgain;
    if (waiting.front() == ticket) {
      const auto turn = line_.Next(lane, !exchange.empty());
      passes = turn <= now;
      look = std::min(look, turn);
    }
    if (!passes) changed_.WaitUntil(&mutex_, look);
  }
  if (passes) line_.Send(lane, bytes, Clock::now());
  waiting.erase(std::find(waiting.begin(), waiting.end(), ticket));
  changed_.SignalAll();
  return passes;
}

}  // namespace isthmus::daemon
