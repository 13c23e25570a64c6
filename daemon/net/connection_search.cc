#include "daemon/net/connection_search.h"

#include <algorithm>
#include <limits>

namespace isthmus::daemon {
namespace {

constexpr double kShareOfBytes = 3;  // of a round's time at the best rate: as much as grows in it
constexpr double kShareOfSecond = 1.2;  // of a round that knows what to expect
constexpr double kMuchMore = 1.5;       // bytes than the first round had

// Bytes that had come by then: two straight lines, before and after the half that the round tells.
// Its last byte came when its sender had the answer, but for what that takes, as with all of them.
double BytesAt(const RateSearch::Round& round, double at_s) {
  const double begun_s = round.sender_s - round.elapsed_s;
  const double bend_s = round.elapsed_s - round.tail_s;
  const auto head = static_cast<double>(round.received_bytes - round.tail_bytes);
  const double since_s = std::max(0.0, at_s - begun_s);
  if (since_s <= bend_s) return bend_s > 0 ? head * since_s / bend_s : 0;
  const double after = round.tail_s > 0 ? std::min(1.0, (since_s - bend_s) / round.tail_s) : 1;
  return head + after * static_cast<double>(round.tail_bytes);
}

}  // namespace

ConnectionSearch::ConnectionSearch(double round_trip_s, double rate_of_one, int64_t max_bytes)
    : round_trip_s_(round_trip_s), max_bytes_(max_bytes), rates_{{1, rate_of_one}} {
  done_ = (short_way() && rate_of_one < kFastLine) ||
          rate_of_one / 8 * round_trip_s < kFewBytesUnderWay || max_bytes < kFewBytes;
}

double ConnectionSearch::RateOf(int connections) const {
  const auto found = rates_.find(connections);
  return found == rates_.end() ? 0 : found->second;
}

int ConnectionSearch::Best() const {
  return std::max_element(rates_.begin(), rates_.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

int ConnectionSearch::Next() const {
  if (done_) return 0;
  if (again_ > 0) return again_;
  if (RateOf(4) == 0) return 4;
  if (RateOf(4) < pays() * RateOf(1)) return 0;
  // Two carry at most twice what one does.
  if (RateOf(2) == 0 && !cut_short() && 2 * RateOf(1) >= kAsGood * RateOf(4)) return 2;
  return RateOf(8) == 0 && RateOf(2) < kAsGood * RateOf(4) ? 8 : 0;
}

// At the best rate so far; what is expected of fewer connections is less in proportion.
double ConnectionSearch::WantedBytes(int connections) const {
  if (again_ == connections) return kShareOfSecond * Seconds() * RateOf(connections) / 8;
  const double share = std::min(1.0, static_cast<double>(connections) / Best());
  return kShareOfBytes * Seconds() * share * RateOf(Best()) / 8;
}

int64_t ConnectionSearch::Bytes(int connections) const {
  return static_cast<int64_t>(std::min(WantedBytes(connections), static_cast<double>(max_bytes_)));
}

bool ConnectionSearch::cut_short() const {
  return !short_way() && WantedBytes(Best()) > static_cast<double>(max_bytes_);
}

void ConnectionSearch::Add(int connections, double rate_bits_per_s) {
  const auto given = static_cast<double>(Bytes(connections));
  const bool first = again_ == 0;
  again_ = 0;
  if (rate_bits_per_s <= 0) {
    done_ = true;
    return;
  }
  rates_[connections] = rate_bits_per_s;
  const double second = kShareOfSecond * Seconds() * rate_bits_per_s / 8;
  if (first && second > kMuchMore * given && given < static_cast<double>(max_bytes_))
    again_ = connections;
}

int ConnectionSearch::connections() const {
  const double best = RateOf(Best());
  if (best < pays() * RateOf(1)) return 1;  // noise as likely as not
  int chosen = 1;
  for (const auto& [connections, rate] : rates_) {
    if (rate < kAsGood * best) continue;
    chosen = connections;
    if (!cut_short()) break;
  }
  return chosen;
}

double SideBySideBitsPerSecond(const std::vector<RateSearch::Round>& rounds, double round_trip_s) {
  double first_s = std::numeric_limits<double>::infinity();
  RateSearch::Round all;
  for (const RateSearch::Round& round : rounds) {
    if (round.tail_bytes <= 0) return 0;
    first_s = std::min(first_s, round.sender_s);
    all.sender_s = std::max(all.sender_s, round.sender_s);
    all.received_bytes += round.received_bytes;
  }
  if (rounds.empty() || first_s <= 0) return 0;
  double bytes = 0;
  for (const RateSearch::Round& round : rounds)
    bytes += BytesAt(round, first_s) - BytesAt(round, first_s / 2);
  // As of one connection: its slow start takes longer than that of several.
  all.tail_bytes = static_cast<int64_t>(bytes);
  all.tail_s = first_s / 2;
  RateSearch together(round_trip_s);
  together.Add(all);
  return together.rate_bits_per_s();
}

}  // namespace isthmus::daemon
