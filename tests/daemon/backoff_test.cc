#include "daemon/backoff.h"

#include <algorithm>
#include <set>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

TEST(Backoff, DoublesUpToTheCapWithJitterOfAHalf) {
  const BackoffOptions options;
  for (int failures = 1; failures < 2000; ++failures) {
    const absl::Duration full =
        std::min(options.first * (int64_t{1} << std::min(failures - 1, 20)), options.cap);
    const absl::Duration delay = BackoffDelay(options, failures, 42);
    EXPECT_GE(delay, full / 2);
    EXPECT_LE(delay, full);
  }
}

// F32: after a restart of the coordinator its daemons must not all come back in the same moment.
TEST(Backoff, DaemonsSpreadOut) {
  std::set<int64_t> tenths;
  for (uint64_t seed = 0; seed < 200; ++seed)
    tenths.insert(absl::ToInt64Milliseconds(BackoffDelay({}, 10, seed)) / 100);
  EXPECT_GT(tenths.size(), 30u);  // 200 daemons over 5 s in slots of 100 ms
}

}  // namespace
}  // namespace isthmus::daemon
