// How many TCP connections side by side a link takes: one fills most lines, but not one whose
// packets get lost or whose round trip is long, nor one that is faster than a thread moves bytes.
// Decides what a measurement tries next, and reads what several connections showed. Thread: values
// and pure functions: no clock, no network.
#ifndef ISTHMUS_DAEMON_NET_CONNECTION_SEARCH_H_
#define ISTHMUS_DAEMON_NET_CONNECTION_SEARCH_H_

#include <cstdint>
#include <map>
#include <vector>

#include "base/link_rate.h"

namespace isthmus::daemon {

// Tries 4, and where that pays 2 or 8; once more where it paid so well that the round was short:
// the first packets of a connection pass before one of them is lost. One connection's rate is
// known.
class ConnectionSearch {
 public:
  // Below these one connection is not held up by losses or windows ...
  static constexpr double kShortRoundTrip_s = 0.005;
  static constexpr double kFewBytesUnderWay = 8 << 10;
  // ... but on a short way, too, by the one thread that each connection has at either end.
  static constexpr double kFastLine = 4e9;  // bit/s
  // A measurement that may not take so much is too short to tell.
  static constexpr int64_t kFewBytes = RateSearch::kEnoughBytes;
  static constexpr double kPays = 1.1;       // times the rate of fewer connections
  static constexpr double kPaysShort = 1.5;  // on a short way, where the hosts' load is the noise
  static constexpr double kAsGood = 0.95;    // of the best rate: then the fewer connections count

  ConnectionSearch(double round_trip_s, double rate_of_one, int64_t max_bytes);

  int Next() const;  // connections to try; 0: done
  // Of a round: nothing is sent later ...
  double Seconds() const { return 1 + 8 * round_trip_s_; }
  // ... and so many bytes at most, of all connections together.
  int64_t Bytes(int connections) const;
  void Add(int connections,
           double rate_bits_per_s);  // 0: it could not be measured, and that is all

  // The fewest that are as good as the best. The most, where the bytes allowed end in slow start:
  // what more of them carry later was not seen.
  int connections() const;
  double rate_bits_per_s() const { return rates_.at(connections()); }

 private:
  double RateOf(int connections) const;  // 0: not tried
  int Best() const;                      // connections
  double WantedBytes(int connections) const;
  bool cut_short() const;  // never on a short way: there is no slow start to speak of
  bool short_way() const { return round_trip_s_ < kShortRoundTrip_s; }
  double pays() const { return short_way() ? kPaysShort : kPays; }

  const double round_trip_s_;
  const int64_t max_bytes_;
  std::map<int, double> rates_;
  int again_ = 0;  // connections that are tried a second time
  bool done_ = false;
};

// What connections that began together carried at once, `sender_s` of each by the clock of their
// common sender: over the second half of the time until the first of them had ended, and never more
// than all took until the last. 0: too little came to tell.
double SideBySideBitsPerSecond(const std::vector<RateSearch::Round>& rounds, double round_trip_s);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_CONNECTION_SEARCH_H_
