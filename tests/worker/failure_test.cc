#include "worker/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cure.h"
#include "base/status.h"
#include "proto/failure_cause.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DescribeFailure, NamesWhoWhereAndWhatToDo) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 1).value();
  const absl::Status status =
      DescribeFailure(*plan, 17, absl::UnavailableError("link b0 with stage 0: reset"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "stage 1 (node-1, 10.0.0.2:7071) failed at step 17: link b0 with stage 0: reset. Check "
            "that the node runs and its network is up");
}

// The coordinator adds how the job goes on: it stood there twice.
TEST(DescribeFailure, HowTheJobGoesOnIsNotSaidHere) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 1).value();
  for (int code = 1; code <= 16; ++code) {
    const absl::Status told =
        DescribeFailure(*plan, 17, absl::Status(static_cast<absl::StatusCode>(code), "x"));
    EXPECT_THAT(told.message(), Not(HasSubstr("resume"))) << told;
  }
}

TEST(DescribeFailure, APeersStoryStaysItsOwn) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 0).value();
  const auto upper = SessionPlan::Make(MakePlan(WorldShape()), 1).value();
  const absl::Status origin = DescribeFailure(*upper, 17, absl::InternalError("out of luck"));
  const absl::Status seen = Annotate(Annotate(origin, "the peer ended the link"), "link b0");
  const absl::Status told = DescribeFailure(*plan, 18, seen);
  EXPECT_EQ(told.message(), origin.message());
  EXPECT_EQ(CauseOf(told)->kind(), FailureCause::SESSION_FAILED);
  EXPECT_EQ(CauseOf(told)->rank(), 1);
  EXPECT_EQ(CauseOf(told)->node(), plan->plan().ranks(1).node_id());
  EXPECT_EQ(CauseOf(told)->step(), 17);
  // What carries the cause may say what it likes.
  EXPECT_EQ(DescribeFailure(*plan, 18, Reword(seen, "gone")).message(), origin.message());
}

TEST(DescribeFailure, WordsThatLookLikeAPeersStoryAreNone) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 0).value();
  const absl::Status told = DescribeFailure(
      *plan, 18, absl::InternalError("a file called stage 1 (node-1) failed at step 3: x"));
  EXPECT_EQ(CauseOf(told)->rank(), 0);
  EXPECT_THAT(told.message(), HasSubstr("a file called stage 1"));
}

// "check that its port is open. Check that the node runs and its network is up"
TEST(DescribeFailure, WhatToDoIsSaidOnce) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 0).value();
  const absl::Status told = DescribeFailure(
      *plan, 0,
      Annotate(WithCure(absl::UnavailableError("no connection within 30s: check that the daemon "
                                               "runs there and that its port is open")),
               "opening link b0 with stage 1 (node-1, 10.0.0.2:7071)"));
  EXPECT_THAT(std::string(told.message()), testing::EndsWith("and that its port is open"));
  // Words alone are no cure: a name may hold them.
  const absl::Status named =
      DescribeFailure(*plan, 0, absl::InternalError("'check that .txt' is not there"));
  EXPECT_THAT(std::string(named.message()), testing::EndsWith("before the job goes on"));
}

TEST(DescribeFailure, MessagesAreBounded) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 0).value();
  EXPECT_LE(
      DescribeFailure(*plan, 1, absl::InternalError(std::string(100000, 'x'))).message().size(),
      2000u);
}

TEST(DescribeFailure, ACancelNeedsNoAdvice) {
  const auto plan = SessionPlan::Make(MakePlan(WorldShape()), 0).value();
  EXPECT_THAT(DescribeFailure(*plan, 1, absl::CancelledError("the user asked")).message(),
              Not(HasSubstr("resume")));
}

}  // namespace
}  // namespace isthmus::worker
