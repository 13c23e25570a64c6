#include "coordinator/cli/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

// For the whole binary: tests here send signals to the process while gRPC's threads of other tests
// are there, which must not take them. Children do not inherit it (process.cc).
const bool kBlocked = [] {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0;
}();

constexpr absl::Duration kLong = absl::Seconds(30);  // ends by the event, not by time

TEST(Interrupt, ASignalWakesAndCalls) {
  ASSERT_TRUE(kBlocked);
  Interrupt interrupt;
  std::atomic<int> calls{0};
  interrupt.OnSignal([&] { ++calls; });
  EXPECT_FALSE(interrupt.WaitFor(absl::ZeroDuration()));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(interrupt.WaitFor(kLong));
  EXPECT_EQ(calls, 1);
}

TEST(Interrupt, OnSignalAfterTheSignalCallsAtOnce) {
  Interrupt interrupt;
  kill(getpid(), SIGINT);
  EXPECT_TRUE(interrupt.WaitFor(kLong));
  EXPECT_TRUE(interrupt.interrupted());
  int calls = 0;
  interrupt.OnSignal([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(Interrupt, TheMaskComesBack) {
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  {
    Interrupt interrupt;
    sigset_t during;
    pthread_sigmask(SIG_BLOCK, nullptr, &during);
    EXPECT_EQ(sigismember(&during, SIGTERM), 1);
  }
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

}  // namespace
}  // namespace isthmus::cli
