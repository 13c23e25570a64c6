// GrpcLink over loopback gRPC: what a session may rely on.
#include "daemon/net/grpc_link.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/rng.h"
#include "gtest/gtest.h"
#include "proto/failure_cause.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kMaxPayload = int64_t{256} << 20;

struct Pair {
  std::unique_ptr<worker::Link> lower;
  std::unique_ptr<worker::Link> upper;
};

Pair Open(LoopbackCluster* cluster, const Plan& plan, int link = 0) {
  Pair pair;
  std::thread upper([&] {
    auto opened = cluster->opener(1)->Open(plan, plan.links(link), 1, kLong);
    ASSERT_TRUE(opened.ok()) << opened.status();
    pair.upper = std::move(opened).value();
  });
  auto opened = cluster->opener(0)->Open(plan, plan.links(link), 0, kLong);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (opened.ok()) pair.lower = std::move(opened).value();
  upper.join();
  return pair;
}

class GrpcLinkTest : public testing::Test {
 protected:
  GrpcLinkTest() : cluster_(2, 1 << 20), plan_(TwoStagePlan()) {
    cluster_.Prepare(&plan_);
    pair_ = Open(&cluster_, plan_);
  }

  LoopbackCluster cluster_;
  Plan plan_;
  Pair pair_;
};

worker::Frame BulkFrame(int64_t step, size_t bytes) {
  worker::Frame frame = MakeFrame(step, bytes);
  frame.header.set_kind(FrameHeader::SUM);
  return frame;
}

bool Same(const worker::Frame& a, const worker::Frame& b) {
  return a.payload == b.payload && a.header.SerializeAsString() == b.header.SerializeAsString();
}

TEST_F(GrpcLinkTest, EverySizeAroundTheChunkBordersBothWays) {
  constexpr size_t kChunk = kMinChunkBytes;
  int64_t step = 0;
  for (worker::Link* from : {pair_.lower.get(), pair_.upper.get()}) {
    worker::Link* to = from == pair_.lower.get() ? pair_.upper.get() : pair_.lower.get();
    for (size_t bytes : {size_t{0}, size_t{1}, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk - 1,
                         2 * kChunk, 2 * kChunk + 1}) {
      const worker::Frame frame = MakeFrame(++step, bytes);
      ASSERT_TRUE(from->Send(frame, kLong).ok());
      const auto got = to->Receive(kMaxPayload, kLong);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_TRUE(Same(*got, frame)) << bytes;
    }
  }
}

// At 1 kbit/s a piece of bulk waits for minutes.
TEST(GrpcLinkUplink, BulkThatWaitsHoldsNoOtherLinkUpAndEndsWithItsOwn) {
  LoopbackCluster cluster(2, 1 << 20, 1000);
  Plan plan = TwoStagePlan();
  *plan.add_links() = plan.links(0);
  plan.mutable_links(1)->set_id("b1");
  cluster.Prepare(&plan);
  Pair bulk = Open(&cluster, plan), critical = Open(&cluster, plan, 1);
  absl::Status ended;
  std::thread sender([&] { ended = bulk.lower->Send(BulkFrame(1, 256 << 10), kLong); });
  while (bulk.lower->wire_bytes_sent() == 0) std::this_thread::yield();
  ASSERT_TRUE(critical.lower->Send(MakeFrame(2, 1 << 20), kLong).ok());
  EXPECT_TRUE(critical.upper->Receive(kMaxPayload, kLong).ok());
  EXPECT_LT(bulk.lower->wire_bytes_sent(), 128 << 10) << "the second half of it waits";
  bulk.lower->Cancel(absl::CancelledError("enough"));
  sender.join();
  EXPECT_EQ(ended.message(), "enough");
}

TEST(GrpcLinkUplink, BulkComesWholeInItsPieces) {
  LoopbackCluster cluster(2, 1 << 20, 1'000'000'000);
  Plan plan = TwoStagePlan();
  cluster.Prepare(&plan);
  Pair pair = Open(&cluster, plan);
  for (size_t bytes : {size_t{0}, size_t{1025}, size_t{64 << 10}, size_t{3 << 20}}) {
    const worker::Frame frame = BulkFrame(1, bytes);
    std::thread sender([&] { EXPECT_TRUE(pair.upper->Send(frame, kLong).ok()); });
    const auto got = pair.lower->Receive(kMaxPayload, kLong);
    sender.join();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(Same(*got, frame)) << bytes;
  }
}

TEST_F(GrpcLinkTest, ABigFrameAndTheBytesOnTheWire) {
  const worker::Frame frame = MakeFrame(1, 64 << 20);
  const int64_t before = pair_.lower->wire_bytes_sent();
  std::thread sender([&] { EXPECT_TRUE(pair_.lower->Send(frame, kLong).ok()); });
  const auto got = pair_.upper->Receive(kMaxPayload, kLong);
  sender.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(Same(*got, frame));
  const int64_t sent = pair_.lower->wire_bytes_sent() - before;
  EXPECT_GE(sent, int64_t{64} << 20);
  EXPECT_LE(sent, (int64_t{64} << 20) * 1.001);  // 9 bytes in 16384, 30 bytes in a chunk
}

// A frame that Receive waited for shows the link's rate by what comes after its first chunk; one
// that lay there already, or has one chunk, shows nothing.
TEST_F(GrpcLinkTest, AFrameThatWasWaitedForIsATrain) {
  constexpr int64_t kBytes = 1 << 20;
  for (const size_t bytes : {size_t{kBytes}, size_t{100}}) {
    absl::StatusOr<worker::Frame> got = absl::UnknownError("nothing came");
    std::thread receiver([&] { got = pair_.upper->Receive(kMaxPayload, kLong); });
    Mutex mutex;
    CondVar never;
    const auto later = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    {
      MutexLock lock(&mutex);
      while (never.WaitUntil(&mutex, later)) {
      }
    }
    EXPECT_TRUE(pair_.lower->Send(MakeFrame(1, bytes), kLong).ok());
    receiver.join();
    ASSERT_TRUE(got.ok()) << got.status();
    if (bytes == 100) {
      EXPECT_EQ(got->train_bytes, 0);
      continue;
    }
    EXPECT_LT(got->train_bytes, kBytes);
    EXPECT_GT(got->train_bytes, kBytes - 2 * kMaxChunkBytes);
    EXPECT_GT(got->train_time.count(), 0);
  }
}

// Both ends send before they receive, more than the windows hold.
TEST_F(GrpcLinkTest, BothDirectionsSaturatedDoNotDeadlock) {
  constexpr int kFrames = 24;
  std::vector<std::thread> threads;
  for (worker::Link* link : {pair_.lower.get(), pair_.upper.get()}) {
    threads.emplace_back([link] {
      for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(link->Send(MakeFrame(i, 1 << 20), kLong).ok());
    });
    threads.emplace_back([link] {
      for (int i = 0; i < kFrames; ++i) {
        const auto got = link->Receive(kMaxPayload, kLong);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_TRUE(Same(*got, MakeFrame(i, 1 << 20))) << i;
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(GrpcLinkTest, MixedSizesKeepTheirOrder) {
  constexpr int kFrames = 300;
  const auto bytes = [](int i) {
    return static_cast<size_t>(RandomBelow(5, 0, i, i % 20 == 0 ? 1 << 20 : 5000));
  };
  std::thread sender([&] {
    for (int i = 0; i < kFrames; ++i)
      ASSERT_TRUE(pair_.lower->Send(MakeFrame(i, bytes(i)), kLong).ok());
  });
  for (int i = 0; i < kFrames; ++i) {
    const auto got = pair_.upper->Receive(kMaxPayload, kLong);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_TRUE(Same(*got, MakeFrame(i, bytes(i)))) << i;
  }
  sender.join();
}

// F29: a consumer that sleeps must not make memory grow without bound at either end.
TEST_F(GrpcLinkTest, ASlowConsumerBoundsWhatIsInFlight) {
  const absl::Status status = pair_.lower->Send(MakeFrame(1, 128 << 20), absl::Milliseconds(500));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("no progress"), absl::string_view::npos) << status;
  // The window is 1 MiB; a chunk and the socket buffers of loopback (6 MiB at most) come on top.
  EXPECT_LT(pair_.lower->wire_bytes_sent(), 12 << 20);
  EXPECT_EQ(pair_.lower->Send(MakeFrame(2, 1), kLong), status) << "the first error is final";
}

TEST_F(GrpcLinkTest, ASlowConsumerBoundsTheDirectionOfTheDialler) {
  const absl::Status status = pair_.upper->Send(MakeFrame(1, 128 << 20), absl::Milliseconds(500));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_LT(pair_.upper->wire_bytes_sent(), 12 << 20);
  const auto got = pair_.lower->Receive(kMaxPayload, kLong);
  EXPECT_FALSE(got.ok());  // the peer learns it
  EXPECT_NE(got.status().message().find("no progress"), absl::string_view::npos) << got.status();
}

TEST_F(GrpcLinkTest, ReceiveWithoutAFrameEndsAtItsDeadline) {
  const auto got = pair_.upper->Receive(kMaxPayload, absl::Milliseconds(50));
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDeadlineExceeded) << got.status();
  EXPECT_EQ(pair_.upper->Send(MakeFrame(1, 1), kLong), got.status());
  EXPECT_NE(pair_.lower->Receive(kMaxPayload, kLong).status().message().find("no progress"),
            absl::string_view::npos);
}

TEST_F(GrpcLinkTest, CancelOfEitherEndReachesThePeerWithItsReason) {
  for (bool lower : {true, false}) {
    worker::Link* mine = lower ? pair_.lower.get() : pair_.upper.get();
    worker::Link* peer = lower ? pair_.upper.get() : pair_.lower.get();
    absl::Status seen;
    absl::Status own;
    std::thread reader([&] { seen = peer->Receive(kMaxPayload, kLong).status(); });
    std::thread blocked([&] { own = mine->Receive(kMaxPayload, kLong).status(); });
    mine->Cancel(WithCause(absl::InternalError("the disk of node-a is full"),
                           MakeCause(FailureCause::SESSION_FAILED, 3, "node-a", 17)));
    reader.join();
    blocked.join();
    EXPECT_NE(seen.message().find("the disk of node-a is full"), absl::string_view::npos) << seen;
    EXPECT_EQ(CauseBeside(seen).rank(), 3) << "by a last message or by a trailer";
    EXPECT_EQ(CauseBeside(seen).node(), "node-a");
    EXPECT_EQ(own.message(), "the disk of node-a is full");
    EXPECT_EQ(mine->Send(MakeFrame(1, 1), kLong), own);
    EXPECT_EQ(peer->Send(MakeFrame(1, 1), kLong), seen);
    EXPECT_EQ(peer->Finish(kLong), seen);
    pair_ = {};
    plan_.set_generation(plan_.generation() + 1);
    cluster_.Prepare(&plan_);
    pair_ = Open(&cluster_, plan_);
  }
}

TEST_F(GrpcLinkTest, CancelEndsASenderThatIsStuck) {
  absl::Status status;
  std::thread sender([&] { status = pair_.lower->Send(MakeFrame(1, 128 << 20), kLong); });
  while (pair_.lower->wire_bytes_sent() < 1 << 18) std::this_thread::yield();
  pair_.lower->Cancel(absl::CancelledError("enough"));
  sender.join();
  EXPECT_EQ(status.message(), "enough");
}

TEST_F(GrpcLinkTest, FinishIsOrderlyOnBothSides) {
  std::vector<std::thread> threads;
  for (worker::Link* link : {pair_.lower.get(), pair_.upper.get()}) {
    threads.emplace_back([link] {
      for (int i = 0; i < 5; ++i) ASSERT_TRUE(link->Send(MakeFrame(i, 3 << 20), kLong).ok());
      const absl::Status status = link->Finish(kLong);
      EXPECT_TRUE(status.ok()) << status;
    });
    threads.emplace_back([link] {
      for (int i = 0; i < 5; ++i) ASSERT_TRUE(link->Receive(kMaxPayload, kLong).ok());
      EXPECT_EQ(link->Receive(kMaxPayload, kLong).status().code(), absl::StatusCode::kOutOfRange);
    });
  }
  for (auto& thread : threads) thread.join();
  for (worker::Link* link : {pair_.lower.get(), pair_.upper.get()}) {
    link->Cancel(absl::CancelledError("done"));
    EXPECT_EQ(link->Receive(kMaxPayload, kLong).status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_FALSE(link->Send(MakeFrame(1, 1), kLong).ok());
  }
}

TEST_F(GrpcLinkTest, FramesThatCameBeforeThePeersEndAreStillThereAfterFinish) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pair_.upper->Send(MakeFrame(i, 1000), kLong).ok());
  std::thread upper([&] { EXPECT_TRUE(pair_.upper->Finish(kLong).ok()); });
  EXPECT_TRUE(pair_.lower->Finish(kLong).ok());
  upper.join();
  for (int i = 0; i < 3; ++i) {
    const auto got = pair_.lower->Receive(kMaxPayload, kLong);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(Same(*got, MakeFrame(i, 1000)));
  }
  EXPECT_EQ(pair_.lower->Receive(kMaxPayload, kLong).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(GrpcLinkTest, FinishReadsAheadAsManyFramesAsItsLimitSays) {
  constexpr int kFrames = GrpcLink::kMaxStash + 2;
  for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(pair_.upper->Send(MakeFrame(i, 1000), kLong).ok());
  std::thread upper([&] { EXPECT_TRUE(pair_.upper->Finish(kLong).ok()); });
  std::thread lower([&] { EXPECT_TRUE(pair_.lower->Finish(kLong).ok()); });
  for (int i = 0; i < kFrames; ++i) {  // each that is taken makes room for one
    const auto got = pair_.lower->Receive(kMaxPayload, kLong);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(Same(*got, MakeFrame(i, 1000)));
  }
  upper.join();
  lower.join();
}

TEST_F(GrpcLinkTest, FramesBeyondTheLimitThatNobodyTakesEndFinishByName) {
  for (size_t i = 0; i < GrpcLink::kMaxStash + 1; ++i)
    ASSERT_TRUE(pair_.upper->Send(MakeFrame(1, 1000), kLong).ok());
  const absl::Status status = pair_.lower->Finish(absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("8 of its frames are here, the limit"), absl::string_view::npos)
      << status;
}

TEST_F(GrpcLinkTest, FinishAloneEndsAtItsDeadline) {
  EXPECT_EQ(pair_.lower->Finish(absl::Milliseconds(50)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(
      pair_.upper->Receive(kMaxPayload, kLong).ok());  // the end, or the break that followed it
}

TEST_F(GrpcLinkTest, APayloadAboveTheLimitIsRefused) {
  ASSERT_TRUE(pair_.lower->Send(MakeFrame(1, 1000), kLong).ok());
  const auto got = pair_.upper->Receive(999, kLong);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument) << got.status();
  EXPECT_FALSE(pair_.lower->Receive(kMaxPayload, kLong).ok());
}

TEST_F(GrpcLinkTest, AHeaderThatLiesAboutItsPayloadIsNotSent) {
  worker::Frame frame = MakeFrame(1, 10);
  frame.header.set_payload_bytes(11);
  EXPECT_EQ(pair_.lower->Send(frame, kLong).code(), absl::StatusCode::kInvalidArgument);
}

// The peer's process goes away in the middle of a frame.
TEST_F(GrpcLinkTest, TheDeathOfTheServingEndEndsTheDialler) {
  absl::Status sent;
  absl::Status received;
  std::thread sender([&] { sent = pair_.lower->Send(MakeFrame(1, 128 << 20), kLong); });
  std::thread receiver([&] { received = pair_.lower->Receive(kMaxPayload, kLong).status(); });
  while (pair_.lower->wire_bytes_sent() < 1 << 18) std::this_thread::yield();
  pair_.upper.reset();
  sender.join();
  receiver.join();
  EXPECT_FALSE(sent.ok());
  EXPECT_EQ(sent, received);
}

TEST_F(GrpcLinkTest, TheDeathOfTheDiallerEndsTheServingEnd) {
  absl::Status sent;
  absl::Status received;
  std::thread sender([&] { sent = pair_.upper->Send(MakeFrame(1, 128 << 20), kLong); });
  std::thread receiver([&] { received = pair_.upper->Receive(kMaxPayload, kLong).status(); });
  while (pair_.upper->wire_bytes_sent() < 1 << 18) std::this_thread::yield();
  pair_.lower.reset();
  sender.join();
  receiver.join();
  EXPECT_FALSE(sent.ok());
  EXPECT_EQ(sent, received);
}

// F30: more blocked streams than cores and than gRPC's polling threads.
TEST(GrpcLinks, SixtyFourAtOnce) {
  LoopbackCluster cluster(2);
  Plan plan = TwoStagePlan();
  const LinkPlan first = plan.links(0);
  constexpr int kLinks = 64;
  for (int i = 1; i < kLinks; ++i) {
    LinkPlan* link = plan.add_links();
    *link = first;
    link->set_id("b" + std::to_string(i));
  }
  cluster.Prepare(&plan);
  std::vector<Pair> pairs;
  for (int i = 0; i < kLinks; ++i) pairs.push_back(Open(&cluster, plan, i));
  std::vector<std::thread> threads;
  for (Pair& pair : pairs) {
    for (worker::Link* link : {pair.lower.get(), pair.upper.get()}) {
      threads.emplace_back([link] {
        for (int i = 0; i < 10; ++i) {
          ASSERT_TRUE(link->Send(MakeFrame(i, 10000), kLong).ok());
          const auto got = link->Receive(kMaxPayload, kLong);
          ASSERT_TRUE(got.ok()) << got.status();
          EXPECT_TRUE(Same(*got, MakeFrame(i, 10000)));
        }
        EXPECT_TRUE(link->Finish(kLong).ok());
      });
    }
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace isthmus::daemon
