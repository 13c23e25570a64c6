#include "coordinator/planner/exchange_time.h"

#include <algorithm>

namespace isthmus::coordinator {

ExchangeTime::ExchangeTime(const Layout& layout) : layout_(layout) {
  for (const GroupPair& pair : layout.pairs) {
    Fastest(pair.lower, pair.up.rate_bits_per_s, pair.down.rate_bits_per_s);
    Fastest(pair.upper, pair.down.rate_bits_per_s, pair.up.rate_bits_per_s);
  }
}

void ExchangeTime::Fastest(int rank, double out, double in) {
  Line& line = lines_[rank];
  line = {std::max(line.out, out), std::max(line.in, in)};
}

void ExchangeTime::Send(int from, int to, double bytes) {
  through_[from].out += bytes;
  through_[to].in += bytes;
}

void ExchangeTime::AddReduction(const std::vector<int>& ranks, double bytes) {
  const double part = bytes / static_cast<double>(ranks.size());
  for (const int a : ranks) {
    for (const int b : ranks) {
      if (a == b) continue;
      if (a < b) between_[{a, b}] += part;
      Send(a, b, part);
    }
  }
}

void ExchangeTime::AddSlices(const std::vector<int>& ranks, double bytes, bool merged) {
  const int stages = layout_.stages();
  const auto moves = [&](int from, int to) {
    const double held = bytes * layout_.slices[static_cast<size_t>(from / stages)];
    const bool gathers = merged && to / stages == 0;
    return gathers ? held : held * layout_.slices[static_cast<size_t>(to / stages)];
  };
  for (const int a : ranks) {
    for (const int b : ranks) {
      if (a == b) continue;
      if (a < b) between_[{a, b}] += std::max(moves(a, b), moves(b, a));
      Send(a, b, moves(a, b));
    }
  }
}

double ExchangeTime::Seconds() const {
  double seconds = 0;
  for (const GroupPair& pair : layout_.pairs) {
    const auto at = between_.find({pair.lower, pair.upper});
    if (at == between_.end()) continue;
    const double rate = std::min(pair.up.rate_bits_per_s, pair.down.rate_bits_per_s);
    seconds = std::max(seconds, 8 * at->second / rate);
  }
  for (const auto& [rank, bytes] : through_) {
    const Line& line = lines_.at(rank);
    seconds = std::max({seconds, 8 * bytes.out / line.out, 8 * bytes.in / line.in});
  }
  return seconds;
}

}  // namespace isthmus::coordinator
