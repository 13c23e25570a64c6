#include "daemon/net/redials.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

LinkHello Hello(uint64_t generation = 3, const std::string& from = "lower") {
  LinkHello hello;
  hello.set_job_id("job");
  hello.set_generation(generation);
  hello.set_link_id("b0");
  hello.set_from_node_id(from);
  return hello;
}

std::shared_ptr<ServerCall> Call(uint64_t attempt) {
  auto call = std::make_shared<ServerCall>();
  call->header = {LinkHeader::kRedial, attempt, 0};
  return call;
}

std::chrono::steady_clock::time_point Later() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

TEST(Redials, ALinkThatIsOpenTakesARedialAndIsToldOfIt) {
  Redials board;
  Redials::Place place(&board, Redials::KeyOf(Hello()));
  std::atomic<int> interrupts{0};
  place.OnInterrupt([&](std::optional<uint64_t> received) {
    EXPECT_EQ(received, 0);
    ++interrupts;
    return absl::OkStatus();
  });
  const auto call = Call(1);
  std::thread handler([&] { EXPECT_TRUE(board.Offer(Hello(), call, kLong).ok()); });
  const auto taken = place.Await(Later());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(*taken, call);
  handler.join();
  EXPECT_EQ(interrupts, 1);
}

// Who dials may be somebody else: a dial of number 2^64 - 1 must not keep later ones out, too.
TEST(Redials, ARedialThatTheLinkRefusesChangesNothing) {
  Redials board;
  Redials::Place place(&board, Redials::KeyOf(Hello()));
  const absl::Status refusal = absl::FailedPreconditionError("never sent so many");
  place.OnInterrupt([&](std::optional<uint64_t>) { return refusal; });
  EXPECT_EQ(board.Offer(Hello(), Call(~uint64_t{0}), kLong), refusal);
  EXPECT_EQ(place.Await(std::chrono::steady_clock::now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  place.OnInterrupt([](std::optional<uint64_t>) { return absl::OkStatus(); });
  std::thread handler([&] { EXPECT_TRUE(board.Offer(Hello(), Call(1), kLong).ok()); });
  EXPECT_TRUE(place.Await(Later()).ok());
  handler.join();
}

TEST(Redials, NobodyWaitsForALinkThatIsNotOpen) {
  Redials board;
  const auto refuses = [&](const LinkHello& hello) {
    const absl::Status offered = board.Offer(hello, Call(1), kLong);
    EXPECT_EQ(offered, board.Ask(hello, 0));
    EXPECT_EQ(offered.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(offered.message()), HasSubstr("is not open here any more"));
  };
  refuses(Hello());
  auto place = std::make_unique<Redials::Place>(&board, Redials::KeyOf(Hello()));
  EXPECT_TRUE(board.Ask(Hello(), 0).ok());
  for (const uint64_t generation : {2, 4}) refuses(Hello(generation));
  refuses(Hello(3, "another"));
  place->Cancel();
  refuses(Hello());
  place.reset();
  refuses(Hello());
}

TEST(Redials, AnOlderDialThatComesLateIsRefusedAndANewerOneTakesItsPlace) {
  Redials board;
  Redials::Place place(&board, Redials::KeyOf(Hello()));
  place.SetAttempt(2);
  EXPECT_THAT(std::string(board.Offer(Hello(), Call(2), kLong).message()), HasSubstr("too late"));
  absl::Status replaced;
  const auto third = Call(3);
  const auto fourth = Call(4);
  std::thread older([&] { replaced = board.Offer(Hello(), third, kLong); });
  while (third.use_count() < 2) std::this_thread::yield();
  std::thread newer([&] { EXPECT_TRUE(board.Offer(Hello(), fourth, kLong).ok()); });
  older.join();
  EXPECT_EQ(replaced.code(), absl::StatusCode::kAborted) << replaced;
  EXPECT_EQ(place.Await(Later()).value(), fourth);
  newer.join();
}

TEST(Redials, AQuestionInterruptsTheConnectionThatItIsAboutAlone) {
  Redials board;
  Redials::Place place(&board, Redials::KeyOf(Hello()));
  int interrupts = 0;
  place.OnInterrupt([&](std::optional<uint64_t> received) {
    EXPECT_FALSE(received.has_value());
    ++interrupts;
    return absl::OkStatus();
  });
  place.SetAttempt(2);
  EXPECT_TRUE(board.Ask(Hello(), 1).ok());
  EXPECT_EQ(interrupts, 0);
  EXPECT_TRUE(board.Ask(Hello(), 2).ok());
  EXPECT_EQ(interrupts, 1);
}

TEST(Redials, WaitsEnd) {
  Redials board;
  Redials::Place place(&board, Redials::KeyOf(Hello()));
  EXPECT_EQ(place.Await(std::chrono::steady_clock::now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(board.Offer(Hello(), Call(1), absl::ZeroDuration()).code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread waits(
      [&] { EXPECT_EQ(place.Await(Later()).status().code(), absl::StatusCode::kCancelled); });
  board.Shutdown(absl::UnavailableError("the daemon is ending"));
  waits.join();
  EXPECT_EQ(board.Offer(Hello(), Call(1), kLong), absl::UnavailableError("the daemon is ending"));
}

}  // namespace
}  // namespace isthmus::daemon
