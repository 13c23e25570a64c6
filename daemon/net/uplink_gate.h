// Who goes first where all that this host sends shares one line of a known rate: `isthmusd
// --uplink`.
//
// The gate keeps count of when that line will have sent all that was given to it. Frames of the
// critical path (activations, their gradients, votes, decisions) and small ones go at once, and
// only move that time. Bulk goes in pieces of kPiece, when at most kAhead of time lies before it:
// what replicas exchange first, copies of checkpoints where none of that waits. So a critical frame
// finds no more before it than kAhead and a piece, whatever TCP, gRPC and the router could hold.
//
// Bulk never starves: an exchange has at least 1 / kExchangeWeight of the line and copies 1 /
// kCopyWeight, however much else is sent. What the critical path waits for by a detour (an exchange
// before a vote) is late at most, never stuck. A write that waits for its peer's window takes no
// share: it was counted once.
//
// Thread: UplinkLine has one owner and no clock; UplinkGate from any.
// Limits: the rate is what it is told. Where the line carries less, bulk and critical frames share
// it as TCP has it; where it carries more, bulk does not use the rest. No more than kMostOwed of
// the line is counted as taken: where critical frames were faster than the rate, bulk is held to
// its least share for that long after them at most.
#ifndef ISTHMUS_DAEMON_NET_UPLINK_GATE_H_
#define ISTHMUS_DAEMON_NET_UPLINK_GATE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>

#include "base/mutex.h"
#include "worker/link/link.h"

namespace isthmus::daemon {

enum class Lane { kCritical, kExchange, kCopy };

// Of a frame: kExchange for contributions, sums and slices of more than kSmallBytes.
Lane LaneOf(const FrameHeader& header);

class UplinkLine {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::milliseconds kPiece{10};
  static constexpr std::chrono::milliseconds kAhead{10};
  static constexpr std::chrono::seconds kMostOwed{5};
  static constexpr int kExchangeWeight = 8;
  static constexpr int kCopyWeight = 16;
  static constexpr uint64_t kSmallBytes = 1024;
  static constexpr int64_t kLeastPieceBytes = 16 << 10;
  // Of an IP packet of 1500 bytes, less TLS; and room for what acknowledges the other direction.
  static constexpr double kPayloadShare = 0.94;

  explicit UplinkLine(int64_t rate_bits_per_s);  // of IP packets; above 0

  // `bytes` go now.
  void Send(Lane lane, int64_t bytes, Time now);
  // From when on `lane` may send its next piece, if nothing else is sent until then.
  Time Next(Lane lane, bool exchange_waits) const;
  int64_t piece_bytes() const { return piece_bytes_; }

 private:
  std::chrono::nanoseconds TimeOf(int64_t bytes) const;

  const double bytes_per_ns_;
  const int64_t piece_bytes_;
  Time free_{};       // all that was sent is out
  Time due_[3] = {};  // of bulk, by lane: its share is due, whatever the line has to send
};

class UplinkGate {
 public:
  explicit UplinkGate(int64_t rate_bits_per_s);  // 0: it holds nothing up

  // Returns when `bytes` may be written. False: `stop`, which is asked now and then, said so. It is
  // asked while the gate is locked: it must take no lock and not block.
  bool Pass(Lane lane, int64_t bytes, const std::function<bool()>& stop);
  // Of what is sent in chunks of `chunk_bytes` without a gate.
  int64_t ChunkBytes(Lane lane, int64_t chunk_bytes) const;

 private:
  bool on() const { return rate_bits_per_s_ > 0; }

  const int64_t rate_bits_per_s_;
  mutable Mutex mutex_;
  CondVar changed_;
  UplinkLine line_ ABSL_GUARDED_BY(mutex_);
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<int64_t> waiting_[3] ABSL_GUARDED_BY(mutex_);  // by lane, who came first
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_UPLINK_GATE_H_
