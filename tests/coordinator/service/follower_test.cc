// A running job whose link gets slow, over loopback with fake daemons: it takes a new plan.
#include "coordinator/service/follower.h"

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FollowerTest : public ServiceTest {
 protected:
  FollowerTest() { wait_for_daemons_ = absl::ZeroDuration(); }
  JobSpec Follows(bool follows) {
    JobSpec job = TwoStages(2000);
    job.mutable_recovery()->set_follow(follows);
    return job;
  }
  // A step of 20 s in which the upper stage waited for 4 MB that came at `mbit`.
  void Step(const Plan& plan, int64_t step, double mbit) {
    for (int rank = 0; rank < 2; ++rank) {
      DaemonMessage m;
      StepRecord* r = m.mutable_step();
      r->set_job_id(plan.job_id());
      r->set_generation(plan.generation());
      r->set_step(step);
      r->set_rank(rank);
      r->set_has_loss(rank == 1);
      r->set_loss(5);
      r->set_step_s(20);
      r->set_committed(true);
      DirectionBytes* d = r->add_directions();
      d->set_link_id("b0");
      d->set_forward(rank == 0);
      if (rank == 1) {
        d->set_train_frames_in(4);
        d->set_train_bytes_in(4000000);
        d->set_train_s_in(32 / mbit);
      }
      (rank == 0) == lower_is_a_ ? a_->Send(m) : b_->Send(m);
    }
  }
  void Steps(const Plan& plan, int64_t from, int64_t to, double mbit) {
    for (int64_t step = from; step < to; ++step) Step(plan, step, mbit);
    EXPECT_TRUE(Eventually([&] { return Status().step() == to; }));
  }
  Plan Start(const JobSpec& job) {
    a_ = Daemon("a");
    b_ = Daemon("b");
    const Plan plan = StartTwo(a_.get(), b_.get(), job);
    lower_is_a_ = plan.ranks(0).node_name() == "a";
    return plan;
  }

  std::unique_ptr<FakeDaemon> a_, b_;
  bool lower_is_a_ = true;
};

TEST_F(FollowerTest, AJobTakesOtherCodecsWhenItsLinkGetsSlow) {
  const Plan plan = Start(Follows(true));
  Steps(plan, 0, 9, 450);
  EXPECT_EQ(Status().following(), "");
  Steps(plan, 9, 15, 2);
  for (FakeDaemon* d : {a_.get(), b_.get()}) {
    const StopSession stop = d->NextStop().value();
    EXPECT_TRUE(stop.graceful());
    EXPECT_THAT(stop.reason(),
                AllOf(StartsWith("link b0 ("), HasSubstr(", where 1.00 Gbit/s were measured: a new "
                                                         "plan is taken: a step costs ")));
  }
  EXPECT_EQ(Status().state(), JOB_STOPPING);
  PutAll(plan, 15);
  for (FakeDaemon* d : {a_.get(), b_.get()}) d->Event(plan, SessionEvent::FINISHED, 15);
  EXPECT_TRUE(Becomes(JOB_PENDING));
  JobSpec other = Follows(false);
  other.set_name("other");
  EXPECT_THAT(std::string(Submit(other).status().message()), HasSubstr("a runs job bible-1"))
      << "they stay its own";
  for (FakeDaemon* d : {a_.get(), b_.get()}) d->SetGeneration(0);
  const Plan next = a_->NextStart().value();
  EXPECT_EQ(b_->NextStart()->generation(), next.generation());
  EXPECT_EQ(next.start_step(), 15);
  EXPECT_NE(FormatCodec(next.links(0).forward()), FormatCodec(plan.links(0).forward()));
  EXPECT_EQ(next.ranks(0).node_id(), plan.ranks(0).node_id());
  EXPECT_LT(next.links(0).rate_up_bits_per_s(), 3e6);
  const JobStatus status = Status();
  EXPECT_EQ(status.moves(), 1);
  EXPECT_EQ(status.recoveries(), 0);
}

TEST_F(FollowerTest, OneThatDoesNotFollowGoesOnAsItWas) {
  const Plan plan = Start(Follows(false));
  Steps(plan, 0, 9, 450);
  Steps(plan, 9, 21, 2);
  EXPECT_EQ(Status().following(), "");
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  EXPECT_FALSE(a_->NextStop(absl::Milliseconds(500)).ok());
}

TEST_F(FollowerTest, WhatDoesNotPayIsToldAndLeft) {
  JobSpec job = Follows(true);
  job.mutable_recipe()->set_steps(20);
  const Plan plan = Start(job);
  Steps(plan, 0, 9, 450);
  Steps(plan, 9, 18, 2);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Status().following(), ": today's plan stays: a new one would gain ");
  })) << Status().following();
  EXPECT_EQ(Status().state(), JOB_RUNNING);
}

}  // namespace
}  // namespace isthmus::coordinator
