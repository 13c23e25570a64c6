#include "deploy/testnet/shaper.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace isthmus::testnet {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [0, 1).
double Uniform(uint64_t* state) { return static_cast<double>(SplitMix(state) >> 11) * 0x1.0p-53; }

// The time left until t, as it is once the rate goes from `from` to `to`.
int64_t Rescaled(int64_t t_ns, int64_t now_ns, int64_t from, int64_t to) {
  if (t_ns <= now_ns || from == 0) return t_ns;
  if (to == 0) return now_ns;
  return now_ns + static_cast<int64_t>(static_cast<double>(t_ns - now_ns) *
                                       (static_cast<double>(from) / static_cast<double>(to)));
}

}  // namespace

int64_t DefaultQueueBytes(int64_t rate_bits_per_s) {
  return std::max<int64_t>(64 << 10, rate_bits_per_s / 8 / 5);
}

Shaper::Shaper(const LinkTable& table, const ShaperOptions& options)
    : num_nodes_(static_cast<int>(table.nodes.size())),
      options_(options),
      pairs_(static_cast<size_t>(num_nodes_) * num_nodes_) {
  uint64_t seeds = options.seed;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    Configure(table.links[i], &pairs_[i]);
    pairs_[i].loss_state = SplitMix(&seeds);
    pairs_[i].jitter_state = SplitMix(&seeds);
  }
}

void Shaper::Configure(const LinkSpec& spec, Pair* pair) const {
  pair->spec = spec;
  pair->delay_ns = absl::ToInt64Nanoseconds(spec.delay);
  pair->jitter_ns = absl::ToInt64Nanoseconds(spec.jitter);
  pair->queue_bytes =
      options_.queue_bytes > 0 ? options_.queue_bytes : DefaultQueueBytes(spec.rate_bits_per_s);
  pair->carry = 0;
}

Shaper::Verdict Shaper::Offer(int from, int to, absl::Span<const uint8_t> packet, int64_t now_ns) {
  Pair& pair = At(from, to);
  if (pair.down) {
    ++pair.counters.dropped_down;
    return Verdict::kDown;
  }
  const int64_t size = static_cast<int64_t>(packet.size());
  if (pair.spec.drop_over_bytes > 0 && size > pair.spec.drop_over_bytes) {
    ++pair.counters.dropped_large;
    return Verdict::kTooLarge;
  }
  const int64_t rate = pair.spec.rate_bits_per_s;
  int64_t departure = now_ns;
  if (rate > 0) {
    const int64_t wait_ns = std::max<int64_t>(0, pair.last_departure_ns - now_ns);
    const double waiting_bytes = static_cast<double>(wait_ns) * static_cast<double>(rate) / 8e9;
    if (waiting_bytes + static_cast<double>(size) > static_cast<double>(pair.queue_bytes)) {
      ++pair.counters.dropped_queue;
      return Verdict::kQueueFull;
    }
    if (wait_ns == 0) pair.carry = 0;
    const int64_t work = size * 8 * kNanosPerSecond + pair.carry;
    departure = now_ns + wait_ns + work / rate;
    pair.carry = work % rate;
  }
  if (held_bytes_ + size > options_.max_held_bytes) {
    ++pair.counters.dropped_queue;
    return Verdict::kQueueFull;
  }
  pair.last_departure_ns = departure;
  if (pair.spec.loss > 0 && Uniform(&pair.loss_state) < pair.spec.loss) {
    ++pair.counters.dropped_loss;
    return Verdict::kLost;
  }
  int64_t travel = pair.delay_ns;
  if (pair.jitter_ns > 0) {
    const double swing =
        (2 * Uniform(&pair.jitter_state) - 1) * static_cast<double>(pair.jitter_ns);
    travel = std::max<int64_t>(0, travel + static_cast<int64_t>(swing));
  }
  const int64_t arrival = std::max(departure + travel, pair.last_arrival_ns);
  pair.last_arrival_ns = arrival;
  held_bytes_ += size;
  pair.queue.push_back({departure, arrival, Packet(packet.begin(), packet.end())});
  if (pair.queue.size() == 1) heads_.push({arrival, static_cast<size_t>(&pair - pairs_.data())});
  return Verdict::kAccepted;
}

std::optional<Shaper::Delivery> Shaper::Pop(int64_t now_ns) {
  while (!heads_.empty() && heads_.top().arrival_ns <= now_ns) {
    const size_t index = heads_.top().pair;
    heads_.pop();
    Pair& pair = pairs_[index];
    Queued first = std::move(pair.queue.front());
    pair.queue.pop_front();
    if (!pair.queue.empty()) heads_.push({pair.queue.front().arrival_ns, index});
    held_bytes_ -= static_cast<int64_t>(first.packet.size());
    if (pair.down) {
      ++pair.counters.dropped_down;
      continue;
    }
    ++pair.counters.packets;
    pair.counters.bytes += first.packet.size();
    return Delivery{static_cast<int>(index / num_nodes_), static_cast<int>(index % num_nodes_),
                    first.arrival_ns, std::move(first.packet)};
  }
  return std::nullopt;
}

void Shaper::SetLink(int from, int to, const LinkSpec& spec, int64_t now_ns) {
  Pair& pair = At(from, to);
  const int64_t old_rate = pair.spec.rate_bits_per_s;
  const int64_t old_delay = pair.delay_ns;
  Configure(spec, &pair);
  // Time on the link is linear in the rate, so scaling what is left is exact, also over the gaps of
  // lost packets.
  pair.last_departure_ns = Rescaled(pair.last_departure_ns, now_ns, old_rate, spec.rate_bits_per_s);
  int64_t previous = 0;
  for (Queued& queued : pair.queue) {
    if (queued.departure_ns > now_ns) {
      const int64_t swing = queued.arrival_ns - queued.departure_ns - old_delay;
      queued.departure_ns = Rescaled(queued.departure_ns, now_ns, old_rate, spec.rate_bits_per_s);
      queued.arrival_ns = queued.departure_ns + std::max<int64_t>(0, pair.delay_ns + swing);
    }
    queued.arrival_ns = std::max(queued.arrival_ns, previous);
    previous = queued.arrival_ns;
  }
  // With an empty queue nothing can be overtaken.
  pair.last_arrival_ns = previous;
  RebuildHeads();
}

void Shaper::RebuildHeads() {
  std::vector<Head> heads;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (!pairs_[i].queue.empty()) heads.push_back({pairs_[i].queue.front().arrival_ns, i});
  }
  heads_ = decltype(heads_)(std::greater<Head>(), std::move(heads));
}

}  // namespace isthmus::testnet
