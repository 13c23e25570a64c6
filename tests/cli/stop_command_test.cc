// `isthmus stop` returns when the job has ended: `rm` and `--resume` right after were told to try
// again.
#include "coordinator/cli/stop_command.h"

#include <unistd.h>

#include <csignal>

#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/app_fixture.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class StopTest : public AppTest {
 protected:
  void SetUp() override {
    AppTest::SetUp();
    fake_.status.set_state(JOB_STOPPING);
    fake_.status.set_step(4);
    fake_.status.set_reason("a checkpoint is written");
  }
  static WatchReply At(JobState state, const std::string& reason, int64_t checkpoint) {
    WatchReply reply = Records(0, 4, state);
    reply.clear_records();
    reply.mutable_status()->set_reason(reason);
    reply.mutable_status()->set_checkpoint_step(checkpoint);
    return reply;
  }
};

TEST_F(StopTest, WaitsForTheEndAndPrintsIt) {
  fake_.streams = {{At(JOB_STOPPING, "a checkpoint is written", 2),
                    At(JOB_STOPPING, "the disk is full", 2), At(JOB_STOPPED, "by the user", 4)}};
  const Result result = Run({"stop", "bible"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "bible-1 stopped: by the user\n");
  EXPECT_EQ(result.err,
            "bible-1 stopping: a checkpoint is written\nbible-1 stopping: the disk is full\n");
  EXPECT_EQ(fake_.asked().watch_requests.at(0).job(), "bible-1");
  EXPECT_FALSE(fake_.asked().stop_request.now());
  const Result json = Run({"stop", "bible", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["status"]["state"], "stopped");
}

TEST_F(StopTest, StepsThatAreLostAreSix) {
  fake_.streams = {{At(JOB_STOPPED, "not in good order", 2)}};
  const Result result = Run({"stop", "bible"});
  EXPECT_EQ(result.code, kExitJobNotDone);
  EXPECT_EQ(result.out, "bible-1 stopped: not in good order\n");
}

TEST_F(StopTest, WhatHasEndedAtOnceIsNotWaitedFor) {
  fake_.status.set_state(JOB_STOPPED);
  fake_.status.set_checkpoint_step(4);
  EXPECT_EQ(Run({"stop", "bible", "--now"}).code, kExitOk);
  fake_.status.set_checkpoint_step(2);
  EXPECT_EQ(Run({"stop", "bible", "--now"}).code, kExitJobNotDone) << "two steps are lost";
  EXPECT_EQ(Run({"stop", "bible", "--now", "--no-wait"}).code, kExitJobNotDone);
  EXPECT_THAT(fake_.asked().watch_requests, IsEmpty());
}

TEST_F(StopTest, NoWaitReturnsAtOnce) {
  const Result result = Run({"stop", "bible", "--no-wait"});
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.out, "bible-1 stopping: a checkpoint is written\n");
  EXPECT_THAT(fake_.asked().watch_requests, IsEmpty());
}

TEST_F(StopTest, TheWaitHasABound) {
  fake_.streams = {{At(JOB_STOPPING, "a checkpoint is written", 2)}};
  const Result result = Run({"stop", "bible", "--timeout", "0"});
  EXPECT_EQ(result.code, kExitNotNow);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr("isthmus: it has not ended within 0 s; it goes on stopping. "
                                    "Its end: isthmus watch bible-1"));
  EXPECT_EQ(Run({"stop", "bible", "--timeout", "-1"}).code, kExitUsage);
}

TEST_F(StopTest, CtrlCEndsTheWaitingAlone) {
  fake_.streams = {{At(JOB_STOPPING, "a checkpoint is written", 2)}};
  fake_.on_watch = [] { kill(getpid(), SIGINT); };
  const Result result = Run({"stop", "bible"});
  EXPECT_EQ(result.code, kExitInterrupted);
  EXPECT_THAT(result.err, HasSubstr("no longer waiting; it goes on stopping"));
  EXPECT_THAT(result.out, Not(HasSubstr("stopped")));
}

TEST_F(StopTest, ADrainOfTheLastDaemonSaysSo) {
  EXPECT_EQ(Run({"drain", "paris"}).out, "paris gets no job until `isthmus drain paris --undo`\n");
  fake_.usable = 0;
  EXPECT_THAT(Run({"drain", "paris"}).out, HasSubstr("\nno daemon is left that gets jobs"));
}

}  // namespace
}  // namespace isthmus::cli
