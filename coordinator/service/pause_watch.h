// Notices that this process itself stood still: it was stopped, its machine was suspended, or a
// snapshot of it was taken. What others did not say meanwhile is not their fault. Looked at by a
// loop that comes by every few hundred milliseconds. Pure; Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_SERVICE_PAUSE_WATCH_H_
#define ISTHMUS_COORDINATOR_SERVICE_PAUSE_WATCH_H_

#include <algorithm>
#include <optional>

#include "absl/time/time.h"

namespace isthmus::coordinator {

class PauseWatch {
 public:
  explicit PauseWatch(absl::Duration least = absl::Seconds(1)) : least_(least) {}

  // `steady` and `boot` are SteadyNow() and BootNow(): one stands still while the machine is
  // suspended, the other does not. How long since the last look, if that is `least` or longer;
  // else zero.
  absl::Duration Look(absl::Time steady, absl::Time boot) {
    const absl::Duration gap = last_.has_value()
                                   ? std::max(steady - last_->steady, boot - last_->boot)
                                   : absl::ZeroDuration();
    last_ = Seen{steady, boot};
    return gap >= least_ ? gap : absl::ZeroDuration();
  }

 private:
  struct Seen {
    absl::Time steady, boot;
  };
  const absl::Duration least_;
  std::optional<Seen> last_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_PAUSE_WATCH_H_
