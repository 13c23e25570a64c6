#include "tests/base/leaping_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

thread_local bool leaping = false;
thread_local int reads = 0;

constexpr time_t kLeapSeconds = 3600;

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME && leaping) time->tv_sec += kLeapSeconds * ++reads;
  return result;
}

namespace isthmus {

LeapingWallClock::LeapingWallClock() {
  leaping = true;
  ::reads = 0;
}
LeapingWallClock::~LeapingWallClock() { leaping = false; }
int LeapingWallClock::reads() const { return ::reads; }

}  // namespace isthmus
