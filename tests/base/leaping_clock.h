// A wall clock that runs wild, to show that a wait does not look at it: while a LeapingWallClock
// lives, each read of CLOCK_REALTIME by its thread goes an hour further. Linked into a test it
// stands before the C library's clock_gettime. Thread: counts and moves its own thread's reads
// only.
#ifndef ISTHMUS_TESTS_BASE_LEAPING_CLOCK_H_
#define ISTHMUS_TESTS_BASE_LEAPING_CLOCK_H_

namespace isthmus {

class LeapingWallClock {
 public:
  LeapingWallClock();
  ~LeapingWallClock();
  int reads() const;  // so far
};

}  // namespace isthmus

#endif  // ISTHMUS_TESTS_BASE_LEAPING_CLOCK_H_
