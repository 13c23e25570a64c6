#include "coordinator/service/watches.h"

#include <gtest/gtest.h>

namespace isthmus::coordinator {
namespace {

std::vector<JobRecord> Steps(std::initializer_list<int> steps) {
  std::vector<JobRecord> records;
  for (int step : steps) records.emplace_back().set_step(step);
  return records;
}

// A coordinator that was killed lost the records of steps 3 to 9: the store goes on at 10, which
// the memory has. `isthmus logs` waited for them for ever.
TEST(TakeHistory, AGapOfLostRecordsIsItsEnd) {
  WatchReply reply;
  int64_t next = 3;
  EXPECT_TRUE(TakeHistory(Steps({10, 11, 12, 13, 14, 15, 16}), 10, 7, &next, &reply));
  EXPECT_EQ(reply.records_size(), 0);
  EXPECT_TRUE(TakeHistory(Steps({3, 10, 11}), 10, 3, &next, &reply));
  EXPECT_EQ(reply.records_size(), 1);
}

TEST(TakeHistory, PagesFollowEachOther) {
  WatchReply reply;
  int64_t next = 0;
  EXPECT_FALSE(TakeHistory(Steps({0, 1, 2}), 10, 3, &next, &reply)) << "a full page";
  EXPECT_EQ(next, 3);
  EXPECT_TRUE(TakeHistory(Steps({3, 4}), 10, 3, &next, &reply)) << "the store has no more";
  EXPECT_TRUE(TakeHistory(Steps({8, 9}), 10, 2, &next, &reply)) << "up to what the memory has";
  EXPECT_EQ(reply.records_size(), 7);
}

}  // namespace
}  // namespace isthmus::coordinator
