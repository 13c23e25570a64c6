#include "base/clock.h"

#include "absl/time/clock.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "gtest/gtest.h"
#include "tests/base/leaping_clock.h"

namespace isthmus {
namespace {

TEST(LeapingWallClock, MovesWhatReadsTheWallClock) {
  const absl::Time before = absl::Now();
  LeapingWallClock clock;
  EXPECT_GT(absl::Now() - before, absl::Minutes(59));
  EXPECT_EQ(clock.reads(), 1);
}

TEST(SteadyClock, TimedWaitsDoNotLookAtTheWallClock) {
  Mutex mutex;
  CondVar never;
  BoundedQueue<int> queue(1);
  LeapingWallClock clock;
  const absl::Time start = SteadyNow();
  {
    MutexLock lock(&mutex);
    const auto deadline = SteadyAfter(absl::Milliseconds(5));
    while (never.WaitUntil(&mutex, deadline)) {
    }
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(queue.Pop(absl::Milliseconds(5)).status()));
  EXPECT_GE(SteadyNow() - start, absl::Milliseconds(10));
  EXPECT_EQ(clock.reads(), 0);
}

TEST(SteadyClock, ADeadlineInThePastIsOver) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  EXPECT_FALSE(never.WaitUntil(&mutex, SteadyAfter(-absl::Seconds(5))));
  EXPECT_FALSE(never.WaitUntil(&mutex, std::chrono::steady_clock::time_point()));
}

TEST(SteadyClock, AnInfiniteTimeoutIsADay) {
  EXPECT_GT(SteadyAfter(absl::InfiniteDuration()),
            std::chrono::steady_clock::now() + std::chrono::hours(23));
}

}  // namespace
}  // namespace isthmus
