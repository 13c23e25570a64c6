#include "coordinator/core/clock_estimate.h"

#include <cstdlib>
#include <random>

#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

TEST(ClockEstimate, TheShortestRoundTripCounts) {
  ClockEstimate clock;
  EXPECT_FALSE(clock.best().known());
  clock.Add(1000, 500, 3000);
  EXPECT_EQ(clock.best().error_ns(), 1000);
  EXPECT_EQ(clock.best().offset_ns(), 1500);
  clock.Add(4000, 3100, 4200);
  EXPECT_EQ(clock.best().error_ns(), 100);
  EXPECT_EQ(clock.best().offset_ns(), 1000);
  clock.Add(5000, 1, 9000);
  EXPECT_EQ(clock.best().offset_ns(), 1000);
  EXPECT_EQ(clock.readings(), 3);
  clock.Add(9000, 1, 8000);  // no reading
  EXPECT_EQ(clock.readings(), 3);
}

TEST(ClockEstimate, HostileFiguresDoNoHarm) {
  ClockEstimate clock;
  clock.Add(1, UINT64_MAX, UINT64_MAX);
  clock.Add(0, 0, 10);
  EXPECT_EQ(clock.best().error_ns(), 5);
}

// Clocks apart by up to hours either way, ways of any length, one of them up to a thousand times
// the other: the truth lies within the stated error.
TEST(ClockEstimate, TheTruthIsWithinTheStatedError) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const auto ahead = static_cast<int64_t>(below(uint64_t{1} << 45)) - (int64_t{1} << 44);
    const uint64_t scale_out = uint64_t{1} << below(30), scale_in = uint64_t{1} << below(30);
    uint64_t now = uint64_t{1} << 50;
    ClockEstimate clock;
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 8; ++i) {
      const uint64_t out = below(scale_out), in = below(scale_in);
      clock.Add(now, now + out + static_cast<uint64_t>(ahead), now + out + in);
      shortest = std::min(shortest, out + in);
      now += out + in + below(1000);
    }
    const int64_t truth = -ahead;
    EXPECT_LE(std::llabs(clock.best().offset_ns() - truth), clock.best().error_ns()) << seed;
    EXPECT_LE(clock.best().error_ns(), static_cast<int64_t>(shortest / 2 + 1)) << seed;
  }
}

}  // namespace
}  // namespace isthmus::coordinator
