#include "worker/link/memory_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

Frame FrameOf(int micro, size_t bytes) {
  Frame frame;
  frame.header.set_micro(micro);
  frame.payload = std::string(bytes, 'x');
  return frame;
}

struct Ends {
  std::unique_ptr<Link> lower, upper;
};

Ends Open(LinkOpener* opener, const Plan& plan) {
  Ends ends;
  std::thread dial([&] { ends.lower = opener->Open(plan, plan.links(0), 0, kLong).value(); });
  ends.upper = opener->Open(plan, plan.links(0), 1, kLong).value();
  dial.join();
  return ends;
}

TEST(MemoryLink, KeepsOrderBothWays) {
  MemoryLinkHub hub;
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ends.lower->Send(FrameOf(i, 10), kLong).ok());
    ASSERT_TRUE(ends.upper->Send(FrameOf(10 + i, 10), kLong).ok());
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ends.upper->Receive(10, kLong)->header.micro(), i);
    EXPECT_EQ(ends.lower->Receive(10, kLong)->header.micro(), 10 + i);
  }
  EXPECT_GT(ends.lower->wire_bytes_sent(), 30);
}

// F29: the writer blocks; memory does not grow.
TEST(MemoryLink, TheWindowIsTheBound) {
  MemoryLinkOptions options;
  options.window_bytes = 250;
  MemoryLinkHub hub(options);
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  EXPECT_TRUE(ends.lower->Send(FrameOf(1, 100), kLong).ok());
  EXPECT_TRUE(ends.lower->Send(FrameOf(2, 100), kLong).ok());
  std::thread reader([&] { EXPECT_TRUE(ends.upper->Receive(100, kLong).ok()); });
  EXPECT_TRUE(ends.lower->Send(FrameOf(3, 100), kLong).ok());  // once the reader has taken one
  reader.join();
  EXPECT_EQ(ends.lower->Send(FrameOf(4, 100), absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ends.lower->Send(FrameOf(5, 1), kLong).code(),
            absl::StatusCode::kDeadlineExceeded);      // the first error is final
  EXPECT_FALSE(ends.upper->Receive(100, kLong).ok());  // for both ends
}

TEST(MemoryLink, AFrameAboveTheWindowGoesAlone) {
  MemoryLinkOptions options;
  options.window_bytes = 10;
  MemoryLinkHub hub(options);
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  EXPECT_TRUE(ends.lower->Send(FrameOf(1, 1000), kLong).ok());
  EXPECT_TRUE(ends.upper->Receive(1000, kLong).ok());
}

TEST(MemoryLink, AnOversizedPayloadIsRefused) {
  MemoryLinkHub hub;
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  ASSERT_TRUE(ends.lower->Send(FrameOf(1, 11), kLong).ok());
  EXPECT_THAT(ends.upper->Receive(10, kLong).status().message(),
              HasSubstr("11 bytes where at most 10"));
}

TEST(MemoryLink, FinishLetsEverythingArriveThenEnds) {
  MemoryLinkHub hub;
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  ASSERT_TRUE(ends.lower->Send(FrameOf(1, 10), kLong).ok());
  std::thread finish([&] { EXPECT_TRUE(ends.lower->Finish(kLong).ok()); });
  EXPECT_TRUE(ends.upper->Receive(10, kLong).ok());
  EXPECT_EQ(ends.upper->Receive(10, kLong).status().code(), absl::StatusCode::kOutOfRange);
  finish.join();
  EXPECT_TRUE(ends.upper->Send(FrameOf(2, 10), kLong).ok());  // the other direction goes on
  EXPECT_TRUE(ends.lower->Receive(10, kLong).ok());
}

TEST(MemoryLink, CancelWakesBothEndsAndTellsWhy) {
  MemoryLinkHub hub;
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  std::thread reader([&] {
    const absl::Status status = ends.upper->Receive(10, kLong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(status.message(), HasSubstr("the disk is full"));
  });
  ends.lower->Cancel(absl::AbortedError("the disk is full"));
  reader.join();
  EXPECT_EQ(ends.lower->Receive(10, kLong).status().message(), "the disk is full");
}

TEST(MemoryLink, ADestroyedEndIsAnError) {
  MemoryLinkHub hub;
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  ends.lower.reset();
  EXPECT_EQ(ends.upper->Receive(10, kLong).status().code(), absl::StatusCode::kUnavailable);
}

TEST(MemoryLink, NobodyComes) {
  MemoryLinkHub hub;
  const Plan plan = MakePlan(WorldShape());
  const absl::Status status = hub.Open(plan, plan.links(0), 0, absl::Milliseconds(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("10.0.0.2:7071"));
}

TEST(MemoryLink, AnotherGenerationIsRefused) {
  MemoryLinkHub hub;
  const Plan old_plan = MakePlan(WorldShape(), 4), new_plan = MakePlan(WorldShape(), 5);
  absl::Status old_status;
  std::thread old_end(
      [&] { old_status = hub.Open(old_plan, old_plan.links(0), 1, kLong).status(); });
  std::unique_ptr<Link> lower, upper;
  std::thread new_end([&] { lower = hub.Open(new_plan, new_plan.links(0), 0, kLong).value(); });
  old_end.join();  // whichever came first, it is told
  EXPECT_EQ(old_status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(old_status.message(), HasSubstr("generation 5"));
  upper = hub.Open(new_plan, new_plan.links(0), 1, kLong).value();
  new_end.join();
  EXPECT_TRUE(lower->Send(FrameOf(1, 1), kLong).ok());
  EXPECT_TRUE(upper->Receive(1, kLong).ok());
}

TEST(MemoryLink, ARateAndADelayOrderArrivals) {
  MemoryLinkOptions options;
  options.rate_bits_per_s = 8e6;  // a byte a microsecond
  options.delay = absl::Milliseconds(2);
  MemoryLinkHub hub(options);
  Ends ends = Open(&hub, MakePlan(WorldShape()));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(ends.lower->Send(FrameOf(1, 1000), kLong).ok());
  ASSERT_TRUE(ends.lower->Send(FrameOf(2, 1000), kLong).ok());
  EXPECT_EQ(ends.upper->Receive(1000, kLong)->header.micro(), 1);
  EXPECT_EQ(ends.upper->Receive(1000, kLong)->header.micro(), 2);
  EXPECT_GE(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(4));  // 2 x 1 ms + 2 ms
}

}  // namespace
}  // namespace isthmus::worker
