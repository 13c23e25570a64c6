// How often a rank writes local checkpoints: the step waits while one is written. Where they are
// paced (checkpoint.local -1), writing takes at most 1 / kPacedShare of the time, and the disk,
// which wears, at most kPacedBytesPerSecond; one that refuses is left alone for a while in any
// case. A core of values. Thread: one owner.
#ifndef ISTHMUS_WORKER_CHECKPOINT_LOCAL_PACE_H_
#define ISTHMUS_WORKER_CHECKPOINT_LOCAL_PACE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "proto/job/job_limits.h"

namespace isthmus::worker {

class LocalPace {
 public:
  static constexpr absl::Duration kRefused = absl::Minutes(1);

  explicit LocalPace(bool paced) : paced_(paced) {}

  bool Holds(absl::Time now) const { return now < not_before_; }
  void Wrote(absl::Time now, absl::Duration took, int64_t bytes) {
    const absl::Duration of_disk = absl::Seconds(static_cast<double>(bytes) / kPacedBytesPerSecond);
    if (paced_) not_before_ = now + std::max(took * (kPacedShare - 1), of_disk);
  }
  void Refused(absl::Time now) { not_before_ = now + kRefused; }

 private:
  const bool paced_;
  absl::Time not_before_ = absl::InfinitePast();
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_CHECKPOINT_LOCAL_PACE_H_
