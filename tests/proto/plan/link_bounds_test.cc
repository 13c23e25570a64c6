#include "proto/plan/link_bounds.h"

#include "gtest/gtest.h"

namespace isthmus {
namespace {

constexpr int64_t kMiB = 1 << 20;

LinkPlan Link(int64_t window_bytes, int connections) {
  LinkPlan link;
  link.set_window_bytes(window_bytes);
  link.set_connections(connections);
  return link;
}

TEST(LinkBounds, OneConnectionHoldsItsWindowAndKeepsWhatItSends) {
  for (int connections : {0, 1}) {
    EXPECT_EQ(ConnectionWindowBytes(Link(5 * kMiB, connections)), 5 * kMiB);
    EXPECT_EQ(MostBytesHeld(Link(5 * kMiB, connections), true), (5 + 20) * kMiB);
    EXPECT_EQ(MostBytesHeld(Link(5 * kMiB, connections), false), kServingWindowBytes + 20 * kMiB);
  }
}

TEST(LinkBounds, SeveralHoldTwiceTheWindowAndWhatWaitsForItsTurn) {
  EXPECT_EQ(ConnectionWindowBytes(Link(8 * kMiB, 4)), 4 * kMiB);
  EXPECT_EQ(MostBytesHeld(Link(8 * kMiB, 4), true), (4 * (4 + 16) + 8) * kMiB);
  EXPECT_EQ(MostBytesHeld(Link(8 * kMiB, 4), false),
            4 * (kServingWindowBytes + 16 * kMiB) + 8 * kMiB);
}

TEST(LinkBounds, EachConnectionFindsRoomForItsChunks) {
  EXPECT_EQ(OrderWindowBytes(Link(kMiB, 8)), 8 * kOrderBytesAConnection);
}

}  // namespace
}  // namespace isthmus
