#include "coordinator/cli/watching.h"

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/fake_coordinator.h"

namespace isthmus::cli {
namespace {

WatchReply State(JobState state, int64_t step) {
  WatchReply reply;
  reply.mutable_status()->set_state(state);
  reply.mutable_status()->set_step(step);
  return reply;
}

class WatchingTest : public testing::Test {
 protected:
  absl::Status Follow(absl::Duration patience = absl::Seconds(30),
                      absl::Time until = absl::InfiniteFuture()) {
    ClientOptions options;
    options.address = fake_.address();
    auto client = Client::Connect(options);
    if (!client.ok()) return client.status();
    FollowOptions follow;
    follow.job = "bible";
    follow.patience = patience;
    follow.until = until;
    follow.retry_every = absl::Milliseconds(1);
    return FollowJob(
        client->get(), &interrupt_, follow, [this](const WatchReply&) { ++replies_; },
        [this](const std::string& text) { remarks_.push_back(text); });
  }

  Interrupt interrupt_;
  FakeCoordinator fake_;
  int replies_ = 0;
  std::vector<std::string> remarks_;
};

TEST_F(WatchingTest, EndsWithTheJob) {
  fake_.streams = {{State(JOB_RUNNING, 1), State(JOB_FINISHED, 0), State(JOB_RUNNING, 9)}};
  EXPECT_TRUE(Follow().ok());
  EXPECT_EQ(replies_, 2);
}

TEST_F(WatchingTest, HasABoundThatAnEndComesBefore) {
  fake_.streams = {{State(JOB_RUNNING, 1), State(JOB_RUNNING, 2)}};
  EXPECT_TRUE(absl::IsDeadlineExceeded(Follow(absl::Seconds(30), SteadyNow())));
  EXPECT_EQ(replies_, 1);
  fake_.Settle();
  fake_.streams = {{State(JOB_FINISHED, 0)}};
  EXPECT_TRUE(Follow(absl::Seconds(30), SteadyNow()).ok());
}

TEST_F(WatchingTest, AnEndThatIsTakenBackIsNone) {
  // Resumed between two words of the coordinator.
  fake_.streams = {{State(JOB_PAUSED, 5), State(JOB_STARTING, 5), State(JOB_FINISHED, 0)}};
  EXPECT_TRUE(Follow().ok());
  EXPECT_EQ(replies_, 3);
}

TEST_F(WatchingTest, TheHistoryOfAnEndedJobComesWhole) {
  for (int page = 0; page < 10; ++page) {
    WatchReply reply = State(JOB_FINISHED, 10);
    reply.add_records()->set_step(page);
    fake_.Settle();
    fake_.streams.resize(1);
    fake_.streams[0].push_back(reply);
  }
  EXPECT_TRUE(Follow().ok());
  EXPECT_EQ(replies_, 10);
}

TEST_F(WatchingTest, PatienceEnds) {
  fake_.Settle();
  fake_.refuse = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  EXPECT_EQ(Follow(absl::Milliseconds(20)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(remarks_.size(), 1u);
  fake_.Settle();
  fake_.refuse = grpc::Status::OK;  // streams that end at once and say nothing
  EXPECT_EQ(Follow(absl::Milliseconds(20)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(WatchingTest, ACoordinatorThatShutsDownIsWaitedFor) {
  fake_.Settle();
  fake_.refuse = grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED");
  EXPECT_EQ(Follow(absl::Milliseconds(20)).code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(fake_.asked().watch_requests.size(), 1u);
  EXPECT_EQ(remarks_.size(), 1u);
}

TEST_F(WatchingTest, OtherErrorsAreFinal) {
  fake_.Settle();
  fake_.refuse = grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
  EXPECT_EQ(Follow().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fake_.asked().watch_requests.size(), 1u);
}

}  // namespace
}  // namespace isthmus::cli
