#include "proto/plan/card_memory.h"

#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(CardMemory, StagesOfOneHostCountTogether) {
  Plan plan;
  for (const char* address : {"10.0.0.1:7071", "10.0.0.1:7072", "10.0.0.2:7071", "", ""}) {
    RankPlan* rank = plan.add_ranks();
    rank->set_address(address);
    rank->set_memory_bytes(int64_t{1} << plan.ranks_size());
  }
  EXPECT_EQ(PlannedOnHost(plan, 0), 2 + 4);
  EXPECT_EQ(PlannedOnHost(plan, 1), 2 + 4);
  EXPECT_EQ(PlannedOnHost(plan, 2), 8);
  EXPECT_EQ(PlannedOnHost(plan, 3), 16) << "addresses that are not known are not one host";
}

TEST(CardMemory, BuffersTakeAQuarterOfWhatNobodyElseTakes) {
  EXPECT_EQ(CardBufferBytes(1000, 0), 250);
  EXPECT_EQ(CardBufferBytes(1000, 600), 100);
  EXPECT_EQ(CardBufferBytes(1000, 1000), 0);
  EXPECT_EQ(CardBufferBytes(1000, 5000), 0);
}

}  // namespace
}  // namespace isthmus
