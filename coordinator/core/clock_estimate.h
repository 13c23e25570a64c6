// How far a daemon's steady clock is from the coordinator's, from readings of both: each tells that
// the daemon read its clock somewhere between the sending of the question and the arrival of the
// answer, however long either way took. The reading of the shortest round trip counts. Clocks drift
// by some microseconds a second: of use for as long as a trace takes. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CORE_CLOCK_ESTIMATE_H_
#define ISTHMUS_COORDINATOR_CORE_CLOCK_ESTIMATE_H_

#include <cstdint>

#include "proto/control.pb.h"

namespace isthmus::coordinator {

class ClockEstimate {
 public:
  // `sent_ns`, `received_ns`: of the coordinator's clock. One that ends before it begins is none.
  void Add(uint64_t sent_ns, uint64_t daemon_ns, uint64_t received_ns) {
    if (received_ns < sent_ns) return;
    const uint64_t round_trip = received_ns - sent_ns;
    ++readings_;
    if (best_.known() && static_cast<int64_t>((round_trip + 1) / 2) >= best_.error_ns()) return;
    best_.set_known(true);
    best_.set_error_ns(static_cast<int64_t>((round_trip + 1) / 2));
    best_.set_offset_ns(static_cast<int64_t>(sent_ns + round_trip / 2 - daemon_ns));  // may wrap
  }
  int readings() const { return readings_; }
  const RankClock& best() const { return best_; }

 private:
  RankClock best_;
  int readings_ = 0;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_CLOCK_ESTIMATE_H_
