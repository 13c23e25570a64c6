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

}  // namespace

int64_t DefaultQueueBytes(int64_t rate_bits_per_s) {
  return std::max<int64_t>(64 << 10, rate_bits_per_s / 8 / 5);
}

void RatedLine::Set(int64_t rate_bits_per_s, int64_t queue_bytes, int64_t now_ns) {
  last_departure_ns_ = Rescaled(last_departure_ns_, now_ns, rate_bits_per_s);
  rate_ = rate_bits_per_s;
  queue_bytes_ = queue_bytes;
  carry_ = 0;
}

std::optional<int64_t> RatedLine::Admit(int64_t size, int64_t now_ns) {
  if (!limited()) return last_departure_ns_ = now_ns;
  const int64_t wait_ns = std::max<int64_t>(0, last_departure_ns_ - now_ns);
  const double waiting_bytes = static_cast<double>(wait_ns) * static_cast<double>(rate_) / 8e9;
  if (waiting_bytes + static_cast<double>(size) > static_cast<double>(queue_bytes_))
    return std::nullopt;
  if (wait_ns == 0) carry_ = 0;
  const int64_t work = size * 8 * kNanosPerSecond + carry_;
  carry_ = work % rate_;
  return last_departure_ns_ = now_ns + wait_ns + work / rate_;
}

// Time on a line is linear in the rate, so scaling what is left is exact, also over the gaps of
// lost packets.
int64_t RatedLine::Rescaled(int64_t t_ns, int64_t now_ns, int64_t rate) const {
  if (t_ns <= now_ns || rate_ == 0) return t_ns;
  if (rate == 0) return now_ns;
  return now_ns + static_cast<int64_t>(static_cast<double>(t_ns - now_ns) *
                                       (static_cast<double>(rate_) / static_cast<double>(rate)));
}

Shaper::Shaper(const LinkTable& table, const ShaperOptions& options)
    : num_nodes_(static_cast<int>(table.nodes.size())),
      options_(options),
      pairs_(static_cast<size_t>(num_nodes_) * num_nodes_),
      ends_(static_cast<size_t>(num_nodes_) * 2) {
  uint64_t seeds = options.seed;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    Configure(table.links[i], 0, &pairs_[i]);
    pairs_[i].loss_state = SplitMix(&seeds);
    pairs_[i].jitter_state = SplitMix(&seeds);
  }
  for (int node = 0; node < num_nodes_; ++node) {
    for (const Side side : kSides) SetEnd(node, side, table.ends[node].At(side), 0);
  }
}

int64_t Shaper::QueueBytes(int64_t rate_bits_per_s) const {
  return options_.queue_bytes > 0 ? options_.queue_bytes : DefaultQueueBytes(rate_bits_per_s);
}

void Shaper::Configure(const LinkSpec& spec, int64_t now_ns, Pair* pair) const {
  pair->spec = spec;
  pair->delay_ns = absl::ToInt64Nanoseconds(spec.delay);
  pair->jitter_ns = absl::ToInt64Nanoseconds(spec.jitter);
  pair->line.Set(spec.rate_bits_per_s, QueueBytes(spec.rate_bits_per_s), now_ns);
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
  if (held_bytes_ + size > options_.max_held_bytes) {
    ++pair.counters.dropped_queue;
    return Verdict::kQueueFull;
  }
  Queued queued;
  queued.pair = static_cast<size_t>(&pair - pairs_.data());
  size_t hop = queued.pair;
  NodeEnd& uplink = End(from, Side::kUp);
  // What waited when it became unlimited goes first.
  if (uplink.line.limited() || !uplink.queue.empty()) {
    hop = pairs_.size() + static_cast<size_t>(from);
    if (!EnterEnd(&uplink, size, now_ns, &queued)) return Verdict::kQueueFull;
  } else if (const Verdict verdict = EnterPair(size, now_ns, &queued);
             verdict != Verdict::kAccepted) {
    return verdict;
  }
  queued.packet.assign(packet.begin(), packet.end());
  held_bytes_ += size;
  Push(hop, std::move(queued));
  return Verdict::kAccepted;
}

Shaper::Verdict Shaper::EnterPair(int64_t size, int64_t at_ns, Queued* queued) {
  Pair& pair = pairs_[queued->pair];
  const std::optional<int64_t> departure = pair.line.Admit(size, at_ns);
  if (!departure) {
    ++pair.counters.dropped_queue;
    return Verdict::kQueueFull;
  }
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
  pair.last_arrival_ns = std::max(*departure + travel, pair.last_arrival_ns);
  queued->departure_ns = *departure;
  queued->arrival_ns = pair.last_arrival_ns;
  return Verdict::kAccepted;
}

bool Shaper::EnterEnd(NodeEnd* end, int64_t size, int64_t at_ns, Queued* queued) {
  const std::optional<int64_t> departure = end->line.Admit(size, at_ns);
  if (!departure) {
    ++end->counters.dropped_queue;
    ++pairs_[queued->pair].counters.dropped_queue;
    return false;
  }
  queued->came_ns = at_ns;
  queued->departure_ns = queued->arrival_ns = *departure;
  return true;
}

void Shaper::Push(size_t hop, Queued queued) {
  std::deque<Queued>& queue = HopAt(hop).queue;
  queue.push_back(std::move(queued));
  if (queue.size() == 1) heads_.push({queue.front().arrival_ns, hop});
}

std::optional<Shaper::Delivery> Shaper::Pop(int64_t now_ns) {
  while (!heads_.empty() && heads_.top().time_ns <= now_ns) {
    const size_t hop = heads_.top().hop;
    heads_.pop();
    std::deque<Queued>& queue = HopAt(hop).queue;
    Queued first = std::move(queue.front());
    queue.pop_front();
    if (!queue.empty()) heads_.push({queue.front().arrival_ns, hop});
    const int64_t size = static_cast<int64_t>(first.packet.size());
    const int64_t at = first.arrival_ns;
    const size_t index = first.pair;
    Pair& pair = pairs_[index];
    const size_t to = index % num_nodes_;
    bool goes_on = true;
    if (hop >= pairs_.size()) {
      EndCounters& counters = ends_[hop - pairs_.size()].counters;
      ++counters.packets;
      counters.bytes += first.packet.size();
      counters.longest_wait_ns = std::max(counters.longest_wait_ns, at - first.came_ns);
    }
    if (IsUplink(hop)) {
      goes_on = EnterPair(size, at, &first) == Verdict::kAccepted;
      if (goes_on) Push(index, std::move(first));
    } else if (pair.down) {
      ++pair.counters.dropped_down;
      goes_on = false;
    } else if (NodeEnd& downlink = End(static_cast<int>(to), Side::kDown);
               hop == index && (downlink.line.limited() || !downlink.queue.empty())) {
      goes_on = EnterEnd(&downlink, size, at, &first);
      if (goes_on) Push(pairs_.size() + num_nodes_ + to, std::move(first));
    } else {
      held_bytes_ -= size;
      ++pair.counters.packets;
      pair.counters.bytes += first.packet.size();
      return Delivery{static_cast<int>(index / num_nodes_), static_cast<int>(to), at,
                      std::move(first.packet)};
    }
    if (!goes_on) held_bytes_ -= size;
  }
  return std::nullopt;
}

void Shaper::SetLink(int from, int to, const LinkSpec& spec, int64_t now_ns) {
  Pair& pair = At(from, to);
  const RatedLine old = pair.line;
  const int64_t old_delay = pair.delay_ns;
  Configure(spec, now_ns, &pair);
  int64_t previous = 0;
  for (Queued& queued : pair.queue) {
    if (queued.departure_ns > now_ns) {
      const int64_t swing = queued.arrival_ns - queued.departure_ns - old_delay;
      queued.departure_ns = old.Rescaled(queued.departure_ns, now_ns, spec.rate_bits_per_s);
      queued.arrival_ns = queued.departure_ns + std::max<int64_t>(0, pair.delay_ns + swing);
    }
    queued.arrival_ns = std::max(queued.arrival_ns, previous);
    previous = queued.arrival_ns;
  }
  // With an empty queue nothing can be overtaken.
  pair.last_arrival_ns = previous;
  RebuildHeads();
}

void Shaper::SetEnd(int node, Side side, int64_t rate_bits_per_s, int64_t now_ns) {
  NodeEnd& end = End(node, side);
  for (Queued& queued : end.queue) {
    queued.departure_ns = end.line.Rescaled(queued.departure_ns, now_ns, rate_bits_per_s);
    queued.arrival_ns = queued.departure_ns;
  }
  end.line.Set(rate_bits_per_s, QueueBytes(rate_bits_per_s), now_ns);
  RebuildHeads();
}

void Shaper::RebuildHeads() {
  std::vector<Head> heads;
  for (size_t hop = 0; hop < pairs_.size() + ends_.size(); ++hop) {
    const std::deque<Queued>& queue = HopAt(hop).queue;
    if (!queue.empty()) heads.push_back({queue.front().arrival_ns, hop});
  }
  heads_ = decltype(heads_)(std::greater<Head>(), std::move(heads));
}

}  // namespace isthmus::testnet
