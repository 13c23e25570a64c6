#include "daemon/net/watchdog.h"

#include <atomic>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

// Counts expiries and lets a test wait for one.
class Bell {
 public:
  void Ring() {
    MutexLock lock(&mutex_);
    ++rings_;
    changed_.SignalAll();
  }
  bool Wait(int rings) { return WaitAtMost(rings, std::chrono::seconds(30)); }
  bool WaitAtMost(int rings, std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    MutexLock lock(&mutex_);
    while (rings_ < rings) {
      if (!changed_.WaitUntil(&mutex_, deadline)) return false;
    }
    return true;
  }
  int rings() {
    MutexLock lock(&mutex_);
    return rings_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int rings_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(Watchdog, ExpiresOnceAndTheShortestFirst) {
  Watchdog dog;
  Bell bell;
  Bell late;
  Watchdog::Watch slow(&dog, absl::Hours(1), [&] { late.Ring(); });
  Watchdog::Watch fast(&dog, absl::Milliseconds(1), [&] { bell.Ring(); });
  EXPECT_TRUE(bell.Wait(1));
  EXPECT_EQ(bell.rings(), 1);
  EXPECT_EQ(late.rings(), 0);
}

TEST(Watchdog, AWatchThatEndsInTimeNeverExpires) {
  Watchdog dog;
  Bell bell;
  for (int i = 0; i < 1000; ++i)
    Watchdog::Watch watch(&dog, absl::Seconds(100), [&] { bell.Ring(); });
  EXPECT_EQ(bell.rings(), 0);
}

TEST(Watchdog, NoExpiryRunsAfterTheDestructor) {
  Watchdog dog;
  for (int i = 0; i < 300; ++i) {
    auto alive = std::make_unique<std::atomic<bool>>(true);
    {
      Watchdog::Watch watch(&dog, absl::Microseconds(i), [&alive] { EXPECT_TRUE(alive->load()); });
    }
    alive->store(false);
    alive.reset();  // a late expiry would read freed memory: the sanitizers see that
  }
}

// The watch is touched until a younger one of twice its time has expired: without the touches it
// would have been the first to go.
TEST(Watchdog, TouchStartsTheTimeAgain) {
  Watchdog dog;
  Bell bell, other;
  Watchdog::Watch watch(&dog, absl::Milliseconds(1500), [&] { bell.Ring(); });
  Watchdog::Watch longer(&dog, absl::Milliseconds(3000), [&] { other.Ring(); });
  while (!other.WaitAtMost(1, std::chrono::milliseconds(5))) watch.Touch();
  EXPECT_EQ(bell.rings(), 0);
  EXPECT_TRUE(bell.Wait(1)) << "without touches it expires";
  watch.Touch();  // of no effect after the expiry
  EXPECT_EQ(bell.rings(), 1);
}

TEST(Watchdog, ManyAtOnce) {
  Watchdog dog;
  Bell bell;
  std::vector<std::unique_ptr<Watchdog::Watch>> watches;
  for (int i = 0; i < 100; ++i) {
    watches.push_back(
        std::make_unique<Watchdog::Watch>(&dog, absl::Milliseconds(i % 10), [&] { bell.Ring(); }));
  }
  EXPECT_TRUE(bell.Wait(100));
}

}  // namespace
}  // namespace isthmus::daemon
