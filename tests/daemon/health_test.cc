#include "daemon/health.h"

#include <stdexcept>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

// F78: an internal thread that dies is seen.
TEST(Health, AThreadThatEndsEarlyOrThrowsTurnsItSick) {
  Health health;
  EXPECT_TRUE(health.ok());
  EXPECT_EQ(health.Report(), "ok\n");
  health.Spawn("quiet", [] {}).join();
  health.Spawn("loud", [] { throw std::runtime_error("no more paper"); }).join();
  EXPECT_FALSE(health.ok());
  EXPECT_EQ(health.Report(),
            "internal thread loud threw: no more paper\ninternal thread quiet ended early\n");
}

TEST(Health, AtTheEndThreadsMayEndButNotThrow) {
  Health health;
  health.Ending();
  health.Spawn("quiet", [] {}).join();
  EXPECT_TRUE(health.ok());
  health.Spawn("odd", [] { throw 3; }).join();
  EXPECT_FALSE(health.ok());
}

}  // namespace
}  // namespace isthmus::daemon
