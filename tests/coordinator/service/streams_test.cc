#include "coordinator/service/streams.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }

struct Line {
  int cancels = 0;
  Session session{[this] { ++cancels; }};
};

TEST(Streams, OneMoreThanTheLimitIsRefusedAndOneThatEndsMakesRoom) {
  Streams streams;
  std::vector<std::unique_ptr<Line>> lines;
  for (int i = 0; i < kMaxSessions; ++i) {
    lines.push_back(std::make_unique<Line>());
    ASSERT_TRUE(streams.Open(&lines.back()->session, At(0)).ok()) << i;
  }
  Line more;
  EXPECT_EQ(streams.Open(&more.session, At(0)).code(), absl::StatusCode::kResourceExhausted);
  streams.Close(lines[7]->session);
  EXPECT_TRUE(streams.Open(&more.session, At(0)).ok());
  EXPECT_NE(more.session.stream, lines[7]->session.stream) << "a number is never used twice";
  for (const auto& line : lines) streams.Close(line->session);
}

TEST(Streams, ADaemonThatDoesNotReadIsEndedByTheFirstMessageTooMany) {
  Streams streams;
  Line line, other;
  ASSERT_TRUE(streams.Open(&line.session, At(0)).ok());
  ASSERT_TRUE(streams.Open(&other.session, At(0)).ok());
  for (size_t i = 0; i < kSessionQueue; ++i)
    streams.Send(line.session.stream, "a", CoordinatorMessage());
  EXPECT_EQ(line.cancels, 0);
  streams.Send(line.session.stream, "a", CoordinatorMessage());
  EXPECT_EQ(line.cancels, 1);
  streams.Send(line.session.stream, "a", CoordinatorMessage());
  EXPECT_EQ(line.cancels, 1) << "nothing is said to a stream that ends";
  EXPECT_EQ(other.cancels, 0);
}

TEST(Streams, OnlyWhoHasNotRegisteredInTimeIsCancelled) {
  Streams streams;
  Line registered, late, fresh;
  ASSERT_TRUE(streams.Open(&registered.session, At(0)).ok());
  ASSERT_TRUE(streams.Open(&late.session, At(0)).ok());
  ASSERT_TRUE(streams.Open(&fresh.session, At(9)).ok());
  streams.SetRegistered(registered.session.stream);
  streams.EndUnregistered(At(5));
  EXPECT_EQ(registered.cancels + fresh.cancels, 0);
  EXPECT_EQ(late.cancels, 1);
}

TEST(Streams, AtTheEndAllEndAndNobodyComes) {
  Streams streams;
  Line line, more;
  line.session.peer = "ipv4:10.0.0.1:5";
  ASSERT_TRUE(streams.Open(&line.session, At(0)).ok());
  EXPECT_EQ(streams.Peer(line.session.stream), "ipv4:10.0.0.1:5");
  EXPECT_EQ(streams.Peer(99), "");
  streams.EndAll();
  EXPECT_EQ(line.cancels, 1);
  EXPECT_TRUE(absl::IsCancelled(line.session.outgoing.Pop(absl::ZeroDuration()).status()));
  EXPECT_TRUE(absl::IsUnavailable(streams.Open(&more.session, At(0))));
  EXPECT_TRUE(streams.IsOpen(line.session.stream)) << "until its handler closes it";
  streams.Close(line.session);
  EXPECT_FALSE(streams.IsOpen(line.session.stream));
}

}  // namespace
}  // namespace isthmus::coordinator
