// The heart of the WAN emulator: packets in, packets out later or never. No clock, no sockets, no
// threads.
//
// For each ordered pair of nodes:  departure = max(now, last departure) + bits / rate
//                                  arrival   = departure + delay +- jitter, never before the
//                                  previous packet
// Before that a packet waits for the uplink of its node, and after it for the downlink of the
// other, where these have a rate: one queue each for all links of the node, first in, first out.
// A packet that finds more than the queue's cap waiting to depart is dropped at the tail. A packet
// lost on the way still takes its time on the link. Losses and jitter come from a generator per
// pair, so they depend on the seed and on that pair's packets alone.
//
// Thread: owned by one thread.
// Limits: queue_bytes a pair, an uplink or a downlink waiting to depart; max_held_bytes over all
// of them, on their way included.
#ifndef ISTHMUS_DEPLOY_TESTNET_SHAPER_H_
#define ISTHMUS_DEPLOY_TESTNET_SHAPER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <queue>
#include <vector>

#include "absl/types/span.h"
#include "deploy/testnet/link_table.h"

namespace isthmus::testnet {

using Packet = std::vector<uint8_t>;  // one IP packet

struct ShaperOptions {
  uint64_t seed = 1;
  int64_t queue_bytes = 0;  // 0: DefaultQueueBytes(rate) of each link, uplink and downlink
  int64_t max_held_bytes = int64_t{512} << 20;
};

// 200 ms of the rate, at least 64 KiB.
int64_t DefaultQueueBytes(int64_t rate_bits_per_s);

struct PairCounters {
  uint64_t packets = 0;  // delivered
  uint64_t bytes = 0;
  uint64_t dropped_loss = 0;
  uint64_t dropped_queue = 0;  // also at the uplink before and the downlink behind it
  uint64_t dropped_down = 0;
  uint64_t dropped_large = 0;
};

// Of a node's uplink or downlink while it has a rate.
struct EndCounters {
  uint64_t packets = 0;  // that departed
  uint64_t bytes = 0;
  uint64_t dropped_queue = 0;
  int64_t longest_wait_ns = 0;  // of a packet, its own time on the line included
};

// A line at a rate, with a queue that takes so many bytes: when would a packet depart? Exact over
// many packets.
class RatedLine {
 public:
  bool limited() const { return rate_ > 0; }
  int64_t rate_bits_per_s() const { return rate_; }
  // What waits drains at the new rate: departures after now_ns are to be Rescaled.
  void Set(int64_t rate_bits_per_s, int64_t queue_bytes, int64_t now_ns);
  // When `size` bytes that come now have departed; nullopt: the queue has no room.
  std::optional<int64_t> Admit(int64_t size, int64_t now_ns);
  // The time left until t_ns, as it is once the rate goes to `rate`.
  int64_t Rescaled(int64_t t_ns, int64_t now_ns, int64_t rate) const;

 private:
  int64_t rate_ = 0;  // bits/s; 0: unlimited
  int64_t queue_bytes_ = 0;
  int64_t last_departure_ns_ = 0;
  int64_t carry_ = 0;  // what the last departure's rounding left, in bit-nanoseconds per second:
                       // the rate is exact
};

class Shaper {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  enum class Verdict { kAccepted, kLost, kQueueFull, kDown, kTooLarge };

  struct Delivery {
    int from = 0;
    int to = 0;
    int64_t arrival_ns = 0;
    Packet packet;
  };

  Shaper(const LinkTable& table, const ShaperOptions& options);

  // Copies the packet if it will arrive; behind an uplink that has a rate kAccepted says that this
  // took it, and the link may lose it yet. `now_ns` (any monotonic clock) never goes back between
  // calls.
  Verdict Offer(int from, int to, absl::Span<const uint8_t> packet, int64_t now_ns);
  // When the next packet arrives, or leaves an uplink; kNever when none is on its way.
  int64_t NextEvent() const { return heads_.empty() ? kNever : heads_.top().time_ns; }
  // The earliest packet that has arrived by now, or nothing.
  std::optional<Delivery> Pop(int64_t now_ns);

  // Takes effect at once: what waits to depart drains at the new rate, what is on its way arrives
  // as planned.
  void SetLink(int from, int to, const LinkSpec& spec, int64_t now_ns);
  void SetEnd(int node, Side side, int64_t rate_bits_per_s, int64_t now_ns);
  // A link that is down drops what is offered and what would arrive.
  void SetDown(int from, int to, bool down) { At(from, to).down = down; }

  const LinkSpec& link(int from, int to) const { return At(from, to).spec; }
  bool down(int from, int to) const { return At(from, to).down; }
  const PairCounters& counters(int from, int to) const { return At(from, to).counters; }
  int64_t end_rate(int node, Side side) const { return End(node, side).line.rate_bits_per_s(); }
  const EndCounters& counters(int node, Side side) const { return End(node, side).counters; }
  int64_t held_bytes() const { return held_bytes_; }

 private:
  struct Queued {
    size_t pair = 0;
    int64_t came_ns = 0;
    int64_t departure_ns = 0;
    int64_t arrival_ns = 0;  // of an uplink or downlink: departure_ns
    Packet packet;
  };
  // What a packet crosses: an uplink, a pair, a downlink.
  struct Hop {
    RatedLine line;
    std::deque<Queued> queue;  // in order of departure and of arrival
  };
  struct Pair : Hop {
    LinkSpec spec;
    bool down = false;
    int64_t delay_ns = 0;
    int64_t jitter_ns = 0;
    int64_t last_arrival_ns = 0;
    uint64_t loss_state = 0;
    uint64_t jitter_state = 0;
    PairCounters counters;
  };
  struct NodeEnd : Hop {
    EndCounters counters;
  };
  struct Head {
    int64_t time_ns;
    size_t hop;  // pairs, then uplinks, then downlinks
    bool operator>(const Head& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : hop > other.hop;
    }
  };

  Pair& At(int from, int to) { return pairs_[static_cast<size_t>(from) * num_nodes_ + to]; }
  const Pair& At(int from, int to) const {
    return pairs_[static_cast<size_t>(from) * num_nodes_ + to];
  }
  NodeEnd& End(int node, Side side) {
    return ends_[static_cast<size_t>(node) + (side == Side::kUp ? 0 : num_nodes_)];
  }
  const NodeEnd& End(int node, Side side) const {
    return const_cast<Shaper*>(this)->End(node, side);
  }
  Hop& HopAt(size_t hop) {
    return hop < pairs_.size() ? static_cast<Hop&>(pairs_[hop]) : ends_[hop - pairs_.size()];
  }
  bool IsUplink(size_t hop) const {
    return hop >= pairs_.size() && hop < pairs_.size() + static_cast<size_t>(num_nodes_);
  }
  int64_t QueueBytes(int64_t rate_bits_per_s) const;
  void Configure(const LinkSpec& spec, int64_t now_ns, Pair* pair) const;
  Verdict EnterPair(int64_t size, int64_t at_ns, Queued* queued);
  bool EnterEnd(NodeEnd* end, int64_t size, int64_t at_ns, Queued* queued);
  void Push(size_t hop, Queued queued);
  void RebuildHeads();

  const int num_nodes_;
  const ShaperOptions options_;
  std::vector<Pair> pairs_;
  std::vector<NodeEnd> ends_;  // uplinks, then downlinks
  // What is next at every hop that has something.
  std::priority_queue<Head, std::vector<Head>, std::greater<Head>> heads_;
  int64_t held_bytes_ = 0;
};

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_SHAPER_H_
