#include "base/queue.h"

#include <thread>

#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(BoundedQueue, KeepsOrderAndBound) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.Push(1, absl::ZeroDuration()).ok());
  EXPECT_TRUE(queue.Push(2, absl::ZeroDuration()).ok());
  EXPECT_EQ(queue.Push(3, absl::Milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()).value(), 1);
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()).value(), 2);
  EXPECT_EQ(queue.Pop(absl::Milliseconds(1)).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(BoundedQueue, CloseLetsQueuedItemsOutAndKeepsTheFirstStatus) {
  BoundedQueue<int> queue(2);
  ASSERT_TRUE(queue.Push(1, absl::ZeroDuration()).ok());
  queue.Close(absl::CancelledError("first"));
  queue.Close(absl::InternalError("second"));
  EXPECT_EQ(queue.Push(2, absl::ZeroDuration()).message(), "first");
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()).value(), 1);
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()).status().message(), "first");
}

TEST(BoundedQueue, AbortWakesAWaitingConsumer) {
  BoundedQueue<int> queue(1);
  std::thread consumer(
      [&] { EXPECT_EQ(queue.Pop(absl::Seconds(60)).status().code(), absl::StatusCode::kAborted); });
  queue.Abort(absl::AbortedError("end"));
  consumer.join();
}

TEST(BoundedQueue, ManyItemsAcrossThreadsArriveOnceAndInOrder) {
  BoundedQueue<int> queue(3);
  std::thread producer([&] {
    for (int i = 0; i < 10000; ++i) ASSERT_TRUE(queue.Push(i, absl::Seconds(60)).ok());
    queue.Close(absl::CancelledError("done"));
  });
  int expected = 0;
  for (;;) {
    absl::StatusOr<int> item = queue.Pop(absl::Seconds(60));
    if (!item.ok()) break;
    ASSERT_EQ(*item, expected++);
  }
  EXPECT_EQ(expected, 10000);
  producer.join();
}

}  // namespace
}  // namespace isthmus
