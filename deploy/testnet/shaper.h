// The heart of the WAN emulator: packets in, packets out later or never. No clock, no sockets, no
// threads.
//
// For each ordered pair of nodes:  departure = max(now, last departure) + bits / rate
//                                  arrival   = departure + delay +- jitter, never before the
//                                  previous packet
// A packet that finds more than the queue's cap waiting to depart is dropped at the tail. A packet
// lost on the way still takes its time on the link. Losses and jitter come from a generator per
// pair, so they depend on the seed and on that pair's packets alone.
//
// Thread: owned by one thread.
// Limits: queue_bytes a pair waiting to depart; max_held_bytes over all pairs, on their way
// included.
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
  int64_t queue_bytes = 0;  // 0: DefaultQueueBytes(rate) of each link
  int64_t max_held_bytes = int64_t{512} << 20;
};

// 200 ms of the rate, at least 64 KiB.
int64_t DefaultQueueBytes(int64_t rate_bits_per_s);

struct PairCounters {
  uint64_t packets = 0;  // delivered
  uint64_t bytes = 0;
  uint64_t dropped_loss = 0;
  uint64_t dropped_queue = 0;
  uint64_t dropped_down = 0;
  uint64_t dropped_large = 0;
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

  // Copies the packet if it will arrive. `now_ns` (any monotonic clock) never goes back between
  // calls.
  Verdict Offer(int from, int to, absl::Span<const uint8_t> packet, int64_t now_ns);
  // When the next packet arrives; kNever when none is on its way.
  int64_t NextEvent() const { return heads_.empty() ? kNever : heads_.top().arrival_ns; }
  // The earliest packet that has arrived by now, or nothing.
  std::optional<Delivery> Pop(int64_t now_ns);

  // Takes effect at once: what waits to depart drains at the new rate, what is on its way arrives
  // as planned.
  void SetLink(int from, int to, const LinkSpec& spec, int64_t now_ns);
  // A link that is down drops what is offered and what would arrive.
  void SetDown(int from, int to, bool down) { At(from, to).down = down; }

  const LinkSpec& link(int from, int to) const { return At(from, to).spec; }
  bool down(int from, int to) const { return At(from, to).down; }
  const PairCounters& counters(int from, int to) const { return At(from, to).counters; }
  int64_t held_bytes() const { return held_bytes_; }

 private:
  struct Queued {
    int64_t departure_ns = 0;
    int64_t arrival_ns = 0;
    Packet packet;
  };
  struct Pair {
    LinkSpec spec;
    bool down = false;
    int64_t delay_ns = 0;
    int64_t jitter_ns = 0;
    int64_t queue_bytes = 0;
    int64_t last_departure_ns = 0;
    int64_t last_arrival_ns = 0;
    int64_t carry = 0;  // what the last departure's rounding left, in bit-nanoseconds per second:
                        // the rate is exact
    uint64_t loss_state = 0;
    uint64_t jitter_state = 0;
    std::deque<Queued> queue;  // in order of departure and of arrival
    PairCounters counters;
  };
  struct Head {
    int64_t arrival_ns;
    size_t pair;
    bool operator>(const Head& other) const {
      return arrival_ns != other.arrival_ns ? arrival_ns > other.arrival_ns : pair > other.pair;
    }
  };

  Pair& At(int from, int to) { return pairs_[static_cast<size_t>(from) * num_nodes_ + to]; }
  const Pair& At(int from, int to) const {
    return pairs_[static_cast<size_t>(from) * num_nodes_ + to];
  }
  void Configure(const LinkSpec& spec, Pair* pair) const;
  void RebuildHeads();

  const int num_nodes_;
  const ShaperOptions options_;
  std::vector<Pair> pairs_;
  // The first arrival of every pair that has one.
  std::priority_queue<Head, std::vector<Head>, std::greater<Head>> heads_;
  int64_t held_bytes_ = 0;
};

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_SHAPER_H_
