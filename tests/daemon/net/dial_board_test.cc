#include "daemon/net/dial_board.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(5);

LinkHello Hello(uint64_t generation, const std::string& link = "b0") {
  LinkHello hello;
  hello.set_job_id("job");
  hello.set_generation(generation);
  hello.set_link_id(link);
  hello.set_from_node_id("lower");
  return hello;
}

bool Says(const absl::Status& status, const std::string& word) {
  return status.message().find(word) != absl::string_view::npos;
}

TEST(DialBoard, ADialBeforeTheSessionWaitsAndIsTaken) {
  DialBoard board;
  auto call = std::make_shared<ServerCall>();
  std::thread handler([&] { EXPECT_TRUE(board.Offer(Hello(3), call, kLong).ok()); });
  board.SetSession("job", 3);
  const auto dial = board.Await("job", 3, "b0", kLong);
  ASSERT_TRUE(dial.ok()) << dial.status();
  EXPECT_EQ(dial->call, call);
  handler.join();
}

TEST(DialBoard, AnOlderGenerationIsRefusedWithBothNumbers) {
  DialBoard board;
  board.SetSession("job", 4);
  const absl::Status status = board.Offer(Hello(3), std::make_shared<ServerCall>(), kLong);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, "generation 3") && Says(status, "generation 4")) << status;
}

TEST(DialBoard, AWaitingDialBecomesStaleWithTheNextSession) {
  DialBoard board;
  board.SetSession("job", 3);
  absl::Status status;
  std::thread handler(
      [&] { status = board.Offer(Hello(3, "b9"), std::make_shared<ServerCall>(), kLong); });
  std::thread session([&] { board.SetSession("job", 5); });
  session.join();
  handler.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST(DialBoard, ANodeThatThePlanDoesNotNameIsRefusedAndTakesNobodysPlace) {
  DialBoard board;
  LinkHello right = Hello(3), wrong = Hello(3);
  right.set_from_node_id("a");
  wrong.set_from_node_id("0");  // before the other in any order
  absl::Status refused, taken;
  auto call = std::make_shared<ServerCall>();
  std::thread stranger(
      [&] { refused = board.Offer(wrong, std::make_shared<ServerCall>(), kLong); });
  std::thread dialler([&] { taken = board.Offer(right, call, kLong); });
  std::thread session([&] {
    board.SetSession("job", 3, {{"b0", "a"}});
    const auto dial = board.Await("job", 3, "b0", kLong);
    EXPECT_TRUE(dial.ok()) << dial.status();
    if (dial.ok()) {
      EXPECT_EQ(dial->call, call);
    }
  });
  session.join();
  dialler.join();
  stranger.join();
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Says(refused, "was dialled by node 0; the plan has node a for it")) << refused;
}

TEST(DialBoard, ASessionThatIsBehindLearnsIt) {
  DialBoard board;
  board.SetSession("job", 3);
  std::thread handler([&] {
    EXPECT_EQ(board.Offer(Hello(8), std::make_shared<ServerCall>(), absl::Milliseconds(300)).code(),
              absl::StatusCode::kFailedPrecondition);
  });
  absl::Status status;
  do {
    status = board.Await("job", 3, "b0", kShort).status();
  } while (status.code() == absl::StatusCode::kDeadlineExceeded);  // until the dial is there
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, "generation 8") && Says(status, "generation 3")) << status;
  handler.join();
}

TEST(DialBoard, NobodyWaitsForEver) {
  DialBoard board;
  board.SetSession("job", 3);
  EXPECT_EQ(board.Await("job", 3, "b0", kShort).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  const absl::Status status = board.Offer(Hello(9), std::make_shared<ServerCall>(), kShort);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(status, "generation 9") && Says(status, "generation 3")) << status;
}

TEST(DialBoard, OfTwoEqualDialsOneIsTakenAndTheOlderOneIsAborted) {
  DialBoard board;
  absl::Status status[2];
  std::thread handlers[2];
  for (int i = 0; i < 2; ++i) {
    handlers[i] = std::thread([&, i] {
      status[i] = board.Offer(Hello(3), std::make_shared<ServerCall>(), absl::Milliseconds(400));
    });
  }
  handlers[0].join();
  handlers[1].join();
  // Nobody takes either: the replaced one is aborted, the other one waits to its end.
  const bool first_lost = absl::IsAborted(status[0]);
  EXPECT_TRUE(absl::IsAborted(status[first_lost ? 0 : 1]));
  EXPECT_EQ(status[first_lost ? 1 : 0].code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DialBoard, ShutdownEndsEveryWaitNowAndLater) {
  DialBoard board;
  std::thread session(
      [&] { EXPECT_EQ(board.Await("job", 1, "b0", kLong).status().message(), "end"); });
  std::thread handler([&] {
    EXPECT_EQ(board.Offer(Hello(2, "x"), std::make_shared<ServerCall>(), kLong).message(), "end");
  });
  board.Shutdown(absl::UnavailableError("end"));
  session.join();
  handler.join();
  EXPECT_EQ(board.Offer(Hello(2), std::make_shared<ServerCall>(), kLong).message(), "end");
}

TEST(DialBoard, CancelAwaitsEndsTheSessionsWaitsUntilTheNextSession) {
  DialBoard board;
  board.SetSession("job", 1);
  board.CancelAwaits(absl::CancelledError("stop"));
  EXPECT_EQ(board.Await("job", 1, "b0", kLong).status().message(), "stop");
  board.SetSession("job", 2);
  EXPECT_EQ(board.Await("job", 2, "b0", kShort).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(DialBoard, WaitingDialsAreBounded) {
  DialBoard board;
  std::vector<std::thread> handlers;
  std::atomic<int> refused{0};
  for (int i = 0; i < DialBoard::kMaxWaiting + 5; ++i) {
    handlers.emplace_back([&, i] {
      const absl::Status status = board.Offer(Hello(1, std::to_string(i)),
                                              std::make_shared<ServerCall>(), absl::Seconds(2));
      if (absl::IsResourceExhausted(status)) ++refused;
    });
  }
  for (auto& handler : handlers) handler.join();
  EXPECT_EQ(refused.load(), 5);
}

}  // namespace
}  // namespace isthmus::daemon
