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

TEST(Health, TheLineAboutTheCoordinatorTellsWhatWentOutAndWhen) {
  EXPECT_EQ(CoordinatorLine("c:7070", false, absl::InfiniteDuration()),
            "coordinator c:7070: no connection, no heartbeat sent yet\n");
  EXPECT_EQ(CoordinatorLine("c:7070", true, absl::Milliseconds(2900)),
            "coordinator c:7070: connection open, last heartbeat sent 2 s ago\n");
  EXPECT_EQ(CoordinatorLine("c:7070", false, absl::Seconds(90)),
            "coordinator c:7070: no connection, last heartbeat sent 90 s ago\n");
}

}  // namespace
}  // namespace isthmus::daemon
