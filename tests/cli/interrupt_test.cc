#include "coordinator/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);  // ends by the event, not by time

TEST(Interrupt, ASignalWakesAndCalls) {
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

TEST(Interrupt, AClosedTerminalIsASignalAsWell) {
  Interrupt interrupt;
  kill(getpid(), SIGHUP);
  EXPECT_TRUE(interrupt.WaitFor(kLong));
}

}  // namespace
}  // namespace isthmus::cli
