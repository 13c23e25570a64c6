// Time for waits, deadlines and ages: the steady clock, which no change of the date and no time
// server moves. Its epoch means nothing outside of this process. The wall clock is for what people
// read; tests/tidy keeps it out of everything else. Thread: pure functions.
#ifndef ISTHMUS_BASE_CLOCK_H_
#define ISTHMUS_BASE_CLOCK_H_

#include <time.h>

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace isthmus {

// For differences of two of them.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// As SteadyNow, but it also runs while the machine is suspended, when the steady clock stands.
inline absl::Time BootNow() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return absl::TimeFromTimespec(time);
}

// A deadline for CondVar::WaitUntil. Longer ones than a day count as a day: an infinite one would
// overflow the clock.
inline std::chrono::steady_clock::time_point SteadyAfter(absl::Duration timeout) {
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24)));
}

}  // namespace isthmus

#endif  // ISTHMUS_BASE_CLOCK_H_
