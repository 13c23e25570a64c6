#include "coordinator/service/streams.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }

struct Line {
  int cancels = 0;
  DaemonStream daemon{[this] { ++cancels; }};
};

TEST(Streams, OneMoreThanTheLimitIsRefusedAndOneThatEndsMakesRoom) {
  Streams streams;
  std::vector<std::unique_ptr<Line>> lines;
  for (int i = 0; i < kMaxDaemonStreams; ++i) {
    lines.push_back(std::make_unique<Line>());
    ASSERT_TRUE(streams.Open(&lines.back()->daemon, At(0)).ok()) << i;
  }
  Line more;
  EXPECT_EQ(streams.Open(&more.daemon, At(0)).code(), absl::StatusCode::kResourceExhausted);
  streams.Close(lines[7]->daemon);
  EXPECT_TRUE(streams.Open(&more.daemon, At(0)).ok());
  EXPECT_NE(more.daemon.number, lines[7]->daemon.number) << "a number is never used twice";
  for (const auto& line : lines) streams.Close(line->daemon);
}

TEST(Streams, ADaemonThatDoesNotReadIsEndedByTheFirstMessageTooMany) {
  Streams streams;
  Line line, other;
  ASSERT_TRUE(streams.Open(&line.daemon, At(0)).ok());
  ASSERT_TRUE(streams.Open(&other.daemon, At(0)).ok());
  for (size_t i = 0; i < kDaemonStreamQueue; ++i)
    streams.Send(line.daemon.number, "a", CoordinatorMessage());
  EXPECT_EQ(line.cancels, 0);
  streams.Send(line.daemon.number, "a", CoordinatorMessage());
  EXPECT_EQ(line.cancels, 1);
  streams.Send(line.daemon.number, "a", CoordinatorMessage());
  EXPECT_EQ(line.cancels, 1) << "nothing is said to a stream that ends";
  EXPECT_EQ(other.cancels, 0);
}

TEST(Streams, OnlyWhoHasNotRegisteredInTimeIsCancelled) {
  Streams streams;
  Line registered, late, fresh;
  ASSERT_TRUE(streams.Open(&registered.daemon, At(0)).ok());
  ASSERT_TRUE(streams.Open(&late.daemon, At(0)).ok());
  ASSERT_TRUE(streams.Open(&fresh.daemon, At(9)).ok());
  streams.SetRegistered(registered.daemon.number);
  streams.EndUnregistered(At(5));
  EXPECT_EQ(registered.cancels + fresh.cancels, 0);
  EXPECT_EQ(late.cancels, 1);
}

TEST(Streams, AtTheEndAllEndAndNobodyComes) {
  Streams streams;
  Line line, more;
  line.daemon.peer = "ipv4:10.0.0.1:5";
  ASSERT_TRUE(streams.Open(&line.daemon, At(0)).ok());
  EXPECT_EQ(streams.Peer(line.daemon.number), "ipv4:10.0.0.1:5");
  EXPECT_EQ(streams.Peer(99), "");
  streams.EndAll();
  EXPECT_EQ(line.cancels, 1);
  EXPECT_TRUE(absl::IsCancelled(line.daemon.outgoing.Pop(absl::ZeroDuration()).status()));
  EXPECT_TRUE(absl::IsUnavailable(streams.Open(&more.daemon, At(0))));
  EXPECT_TRUE(streams.IsOpen(line.daemon.number)) << "until its handler closes it";
  streams.Close(line.daemon);
  EXPECT_FALSE(streams.IsOpen(line.daemon.number));
}

}  // namespace
}  // namespace isthmus::coordinator
