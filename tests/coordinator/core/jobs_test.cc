#include "coordinator/core/jobs.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kStages = 3;

class JobsTest : public ::testing::Test {
 protected:
  absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  std::string Node(int stage) { return "n" + std::to_string(stage); }

  JobSpec Spec() {
    JobSpec spec;
    spec.set_name("bible");
    spec.mutable_recipe()->set_steps(100);
    spec.mutable_recipe()->set_global_batch(8);
    spec.mutable_model()->set_context(32);
    return spec;
  }
  Plan MakePlan(uint64_t generation, int64_t start = 0) {
    Plan plan;
    plan.set_job_id("bible-1");
    plan.set_generation(generation);
    *plan.mutable_job() = Spec();
    plan.set_start_step(start);
    for (int s = 0; s < kStages; ++s) {
      RankPlan* stage = plan.add_ranks();
      stage->set_stage(s);
      stage->set_node_id(Node(s));
      stage->set_node_name("name" + std::to_string(s));
    }
    plan.mutable_deadlines()->set_open_ms(10000);
    plan.mutable_deadlines()->set_first_step_ms(40000);
    plan.mutable_deadlines()->set_step_ms(20000);
    plan.mutable_deadlines()->set_drain_ms(30000);
    return plan;
  }
  SessionEvent Event(int stage, SessionEvent::State state, int64_t step = 0,
                     uint64_t generation = 1) {
    SessionEvent e;
    e.set_job_id("bible-1");
    e.set_generation(generation);
    e.set_rank(stage);
    e.set_state(state);
    e.set_step(step);
    return e;
  }
  Commands Tell(int stage, SessionEvent::State state, double s, int64_t step = 0,
                uint64_t generation = 1) {
    return jobs_.OnEvent(Node(stage), Event(stage, state, step, generation), At(s));
  }
  void Step(int64_t step, double s, uint64_t generation = 1) {
    for (int stage = 0; stage < kStages; ++stage) {
      StepRecord r;
      r.set_job_id("bible-1");
      r.set_generation(generation);
      r.set_step(step);
      r.set_rank(stage);
      r.set_step_s(2);
      r.set_tokens(256);
      if (stage == kStages - 1) {
        r.set_has_loss(true);
        r.set_loss(5.0 - 0.01 * step);
      }
      ASSERT_TRUE(jobs_.OnStep(Node(stage), r, At(s), 1000 + step).ok());
    }
  }
  void Run() {
    ASSERT_TRUE(jobs_.Add("bible-1", 1, Spec(), false, 77).ok());
    ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(1), At(0)).ok());
    for (int s = 0; s < kStages; ++s) Tell(s, SessionEvent::PREPARED, 1);
    ASSERT_EQ(State(), JOB_RUNNING);
  }
  JobState State() { return jobs_.Find("bible-1")->status.state(); }
  FailureCause Cause() { return jobs_.Find("bible-1")->status.cause(); }
  std::string Reason() { return jobs_.Find("bible-1")->status.reason(); }
  isthmus::Register Back(int stage, uint64_t generation) {
    isthmus::Register r;
    r.mutable_node()->set_id(Node(stage));
    r.mutable_node()->set_name("name" + std::to_string(stage));
    r.set_running_generation(generation);
    r.set_running_job_id("bible-1");
    return r;
  }

  JobTable jobs_;
  Membership members_;
};

TEST_F(JobsTest, FromSubmissionToTheEnd) {
  ASSERT_TRUE(jobs_.Add("bible-1", 1, Spec(), false, 77).ok());
  EXPECT_EQ(State(), JOB_PENDING);
  const Commands start = jobs_.Start("bible-1", MakePlan(1), At(0)).value();
  ASSERT_THAT(start, SizeIs(kStages));
  EXPECT_EQ(start[2].node_id, "n2");
  EXPECT_EQ(start[2].message.start().generation(), 1u);
  EXPECT_EQ(State(), JOB_STARTING);
  Tell(0, SessionEvent::PREPARED, 1);
  EXPECT_EQ(Reason(), "1 of 3 daemons are ready");
  Tell(1, SessionEvent::PREPARED, 1);
  Tell(2, SessionEvent::RUNNING, 1);
  EXPECT_EQ(State(), JOB_RUNNING);
  for (int step = 0; step < 100; ++step) Step(step, 2 + step);
  jobs_.OnCheckpoint("bible-1", 100, At(103));
  for (int s = 0; s < kStages; ++s) {
    EXPECT_EQ(State(), JOB_RUNNING);
    EXPECT_THAT(Tell(s, SessionEvent::FINISHED, 104, 100), IsEmpty());
  }
  EXPECT_EQ(State(), JOB_FINISHED);
  const JobStatus status = jobs_.Status(*jobs_.Find("bible"), At(500));
  EXPECT_EQ(status.step(), 100);
  EXPECT_EQ(status.tokens(), 100 * 8 * 32);
  EXPECT_EQ(status.first_loss(), 5.0);
  EXPECT_DOUBLE_EQ(status.loss(), 5.0 - 0.99);
  EXPECT_DOUBLE_EQ(status.tokens_per_s(), 128);
  EXPECT_EQ(status.elapsed_s(), 103);
  EXPECT_EQ(status.eta_s(), 0);
  EXPECT_EQ(status.submitted_unix_ms(), 77);
}

TEST_F(JobsTest, EtaAndRateAreOfTheLastSteps) {
  Run();
  for (int step = 0; step < 30; ++step) Step(step, step);
  const JobStatus status = jobs_.Status(*jobs_.Find("bible-1"), At(31));
  EXPECT_EQ(status.eta_s(), 140);
  EXPECT_EQ(status.step(), 30);
}

TEST_F(JobsTest, AFailureStopsTheOthersAndPausesWithTheCheckpoint) {
  Run();
  Step(0, 2);
  jobs_.OnCheckpoint("bible-1", 1, At(3));
  SessionEvent failed = Event(1, SessionEvent::FAILED, 1);
  failed.set_message("link b1: reset by peer");
  const Commands out = jobs_.OnEvent("n1", failed, At(4));
  ASSERT_THAT(out, SizeIs(2));
  for (const Command& c : out) {
    EXPECT_NE(c.node_id, "n1");
    EXPECT_FALSE(c.message.stop().graceful());
    EXPECT_EQ(c.message.stop().generation(), 1u);
  }
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(),
              HasSubstr("stage 1 on daemon name1 failed at step 1: link b1: reset by peer"));
  EXPECT_THAT(Reason(), HasSubstr("last checkpoint is of step 1: "));
  EXPECT_THAT(Tell(0, SessionEvent::FAILED, 4), IsEmpty()) << "consequences are not causes";
  EXPECT_THAT(Reason(), HasSubstr("link b1"));
}

TEST_F(JobsTest, WithoutACheckpointItFailedButCanBeResumed) {
  Run();
  Tell(0, SessionEvent::FAILED, 4);
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("no checkpoint yet"));
  EXPECT_TRUE(jobs_.Start("bible-1", MakePlan(2), At(9)).ok());
}

TEST_F(JobsTest, TheDaemonThatVanishedIsNamedWhicheverComesFirst) {
  Run();
  jobs_.OnStreamGone("n1", At(3));
  Tell(0, SessionEvent::FAILED, 4);
  EXPECT_THAT(Reason(),
              StartsWith("daemon name1 is lost (its connection ended 1 s before this); stage 0"));
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(2), At(10)).ok());
  Tell(0, SessionEvent::FAILED, 11, 0, 2);
  jobs_.OnStreamGone("n2", At(12));
  jobs_.OnStreamGone("n2", At(12));
  EXPECT_THAT(Reason(),
              StartsWith("daemon name2 is lost (its connection ended 1 s after); stage 0"));
}

TEST_F(JobsTest, ARestartedDaemonHasLostItsSession) {
  Run();
  const Commands out = jobs_.OnRegistered("n2", Back(2, 0), true, At(5));
  EXPECT_THAT(out, SizeIs(2));
  EXPECT_THAT(Reason(), HasSubstr("daemon name2 restarted"));
}

TEST_F(JobsTest, ADaemonThatComesBackIdleMayStillTellHowItEnded) {
  Run();
  for (int step = 0; step < 100; ++step) Step(step, 2 + step);
  jobs_.OnStreamGone("n0", At(103));
  EXPECT_THAT(jobs_.OnRegistered("n0", Back(0, 0), false, At(104)), IsEmpty());
  for (int s = 0; s < kStages; ++s) Tell(s, SessionEvent::FINISHED, 105, 100);
  EXPECT_EQ(State(), JOB_FINISHED);
}

TEST_F(JobsTest, StaleGenerationsAndForeignStagesChangeNothing) {
  Run();
  EXPECT_THAT(Tell(0, SessionEvent::FAILED, 2, 0, 9), IsEmpty());
  EXPECT_THAT(jobs_.OnEvent("n1", Event(0, SessionEvent::FAILED), At(2)), IsEmpty());
  EXPECT_THAT(jobs_.OnEvent("stranger", Event(0, SessionEvent::FAILED), At(2)), IsEmpty());
  StepRecord r;
  r.set_job_id("bible-1");
  r.set_generation(9);
  EXPECT_FALSE(jobs_.OnStep("n0", r, At(2), 0).ok());
  r.set_generation(1);
  r.set_rank(1);
  EXPECT_FALSE(jobs_.OnStep("n0", r, At(2), 0).ok());
  EXPECT_EQ(State(), JOB_RUNNING);
  const Commands out = jobs_.OnRegistered("n7", Back(7, 1), true, At(3));
  ASSERT_THAT(out, SizeIs(1)) << "a daemon that runs what is not its own is stopped";
  EXPECT_THAT(out[0].message.stop().reason(), HasSubstr("no longer current"));
}

TEST_F(JobsTest, StopIsGracefulThenFinal) {
  Run();
  Step(0, 2);
  const Commands out = jobs_.Stop("bible-1", false, At(3)).value();
  ASSERT_THAT(out, SizeIs(kStages));
  EXPECT_TRUE(out[0].message.stop().graceful());
  EXPECT_EQ(State(), JOB_STOPPING);
  EXPECT_THAT(jobs_.Stop("bible-1", false, At(3.5)).value(), IsEmpty());
  jobs_.OnCheckpoint("bible-1", 2, At(4));
  for (int s = 0; s < kStages; ++s) Tell(s, SessionEvent::FINISHED, 5, 2);
  EXPECT_EQ(State(), JOB_STOPPED);
  const JobStatus& status = jobs_.Find("bible-1")->status;
  EXPECT_EQ(status.step(), 2);
  EXPECT_EQ(status.checkpoint_step(), 2);
  EXPECT_EQ(jobs_.Stop("bible-1", false, At(6)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobsTest, AStopThatHangsIsEnded) {
  Run();
  ASSERT_TRUE(jobs_.Stop("bible-1", false, At(3)).ok());
  EXPECT_THAT(jobs_.Tick(members_, At(82)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(83)), SizeIs(kStages));
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_THAT(Reason(), HasSubstr("not in good order"));
}

TEST_F(JobsTest, StopNowAndStopOfAPendingJob) {
  Run();
  EXPECT_FALSE(jobs_.Stop("bible-1", true, At(3)).value()[0].message.stop().graceful());
  EXPECT_EQ(State(), JOB_STOPPED);
  JobSpec other = Spec();
  other.set_name("other");
  ASSERT_TRUE(jobs_.Add("other-2", 2, other, true, 0).ok());
  EXPECT_THAT(jobs_.Stop("other-2", false, At(4)).value(), IsEmpty());
  EXPECT_EQ(jobs_.Find("other")->status.state(), JOB_STOPPED);
}

TEST_F(JobsTest, NotReadyInTimeNamesWho) {
  ASSERT_TRUE(jobs_.Add("bible-1", 1, Spec(), false, 0).ok());
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(1), At(0)).ok());
  Tell(0, SessionEvent::PREPARED, 1);
  Tell(2, SessionEvent::PREPARED, 1);
  EXPECT_THAT(jobs_.Tick(members_, At(39.9)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(40)), SizeIs(kStages));
  EXPECT_THAT(Reason(), HasSubstr("not ready in time: stage 1 on daemon name1"));
}

TEST_F(JobsTest, DifferentDataIsFoundBeforeTheFirstStep) {
  ASSERT_TRUE(jobs_.Add("bible-1", 1, Spec(), false, 0).ok());
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(1), At(0)).ok());
  SessionEvent first = Event(0, SessionEvent::PREPARED), last = Event(2, SessionEvent::PREPARED);
  first.set_corpus_fingerprint(11);
  last.set_corpus_fingerprint(12);
  EXPECT_THAT(jobs_.OnEvent("n0", first, At(1)), IsEmpty());
  EXPECT_THAT(jobs_.OnEvent("n2", last, At(1)), SizeIs(kStages));
  EXPECT_THAT(Reason(),
              HasSubstr("stage 0 on daemon name0 and stage 2 on daemon name2 read different data"));
}

TEST_F(JobsTest, ResumeDropsTheRecordsItWillMakeAgain) {
  Run();
  for (int step = 0; step < 30; ++step) Step(step, 2 + step);
  jobs_.OnCheckpoint("bible-1", 20, At(25));
  Tell(0, SessionEvent::FAILED, 40, 30);
  EXPECT_THAT(jobs_.TakeRecords(), SizeIs(30));
  EXPECT_TRUE(absl::IsAborted(jobs_.Start("bible-1", MakePlan(1, 20), At(41)).status()))
      << "generations never repeat";
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(2, 20), At(41)).ok());
  const Job* job = jobs_.Find("bible-1");
  EXPECT_EQ(job->status.step(), 20);
  EXPECT_EQ(job->recent.back().record.step(), 19);
  EXPECT_EQ(job->status.first_loss(), 5.0);
  for (int step = 20; step < 25; ++step) Step(step, 50 + step, 2);
  EXPECT_EQ(job->status.step(), 25);
  EXPECT_EQ(job->status.state(), JOB_RUNNING);
}

// After a resume with fewer stages the table mixed the bytes of both cuts.
TEST_F(JobsTest, BytesOfBoundariesAreCountedAnewWhereTheCutIsAnother) {
  const auto plan_of = [&](uint64_t generation, int64_t start, int middle) {
    Plan plan = MakePlan(generation, start);
    plan.mutable_ranks(0)->set_end_layer(middle);
    plan.mutable_ranks(1)->set_first_layer(middle);
    plan.add_links()->set_id("b0");
    plan.mutable_links(0)->set_upper(1);
    return plan;
  };
  const auto run = [&](const Plan& plan) {
    ASSERT_TRUE(jobs_.Start("bible-1", plan, At(0)).ok());
    for (int stage = 0; stage < kStages; ++stage) {
      StepRecord r;
      r.set_job_id("bible-1");
      r.set_generation(plan.generation());
      r.set_step(plan.start_step());
      r.set_rank(stage);
      if (stage == 0) {
        r.add_directions()->set_link_id("b0");
        r.mutable_directions(0)->set_wire_bytes(10);
      }
      ASSERT_TRUE(jobs_.OnStep(Node(stage), r, At(1), 1000).ok());
    }
    Tell(0, SessionEvent::FAILED, 2, plan.start_step() + 1, plan.generation());
    ASSERT_EQ(jobs_.Status(*jobs_.Find("bible-1"), At(2)).boundaries_size(), 1);
  };
  const auto bytes = [&] { return jobs_.Status(*jobs_.Find("bible-1"), At(2)).boundaries(0); };
  ASSERT_TRUE(jobs_.Add("bible-1", 1, Spec(), false, 77).ok());
  run(plan_of(1, 0, 4));
  run(plan_of(2, 1, 4));
  EXPECT_EQ(bytes().wire_bytes(), 20);
  EXPECT_EQ(bytes().from_step(), 0);
  run(plan_of(3, 2, 5));
  EXPECT_EQ(bytes().wire_bytes(), 10);
  EXPECT_EQ(bytes().from_step(), 2);
}

// No step is missing in the log of a run that goes on.
TEST_F(JobsTest, StepsBeforeAResumeAreKeptThoughARankWasLost) {
  Run();
  for (int64_t step : {0, 2}) Step(step, 2);
  StepRecord last;
  last.set_job_id("bible-1");
  last.set_generation(1);
  last.set_step(1), last.set_rank(kStages - 1);
  last.set_has_loss(true);
  last.set_loss(4);
  ASSERT_TRUE(jobs_.OnStep(Node(kStages - 1), last, At(2), 1000).ok());
  Tell(0, SessionEvent::FAILED, 3);
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(2, 2), At(4)).ok());
  std::vector<double> losses;
  for (const auto& r : jobs_.Find("bible-1")->recent) losses.push_back(r.record.loss());
  EXPECT_THAT(losses, ElementsAre(5, 4)) << "of steps 0 and 1";
  EXPECT_EQ(jobs_.Find("bible-1")->status.step(), 2);
}

TEST_F(JobsTest, OneLiveJobOfAName) {
  Run();
  EXPECT_EQ(jobs_.Add("bible-2", 2, Spec(), false, 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(jobs_.JobOn("n1")->id, "bible-1");
  Tell(0, SessionEvent::FAILED, 2);
  EXPECT_EQ(jobs_.JobOn("n1"), nullptr);
  ASSERT_TRUE(jobs_.Add("bible-2", 2, Spec(), false, 0).ok());
  EXPECT_EQ(jobs_.Find("bible")->id, "bible-2");
}

TEST_F(JobsTest, EndedJobsMakeRoom) {
  for (int i = 0; i < kMaxJobs + 5; ++i) {
    JobSpec spec = Spec();
    spec.set_name("j" + std::to_string(i));
    ASSERT_TRUE(jobs_.Add(spec.name() + "-x", i, spec, false, 0).ok());
    ASSERT_TRUE(jobs_.Stop(spec.name() + "-x", true, At(i)).ok());
  }
  EXPECT_THAT(jobs_.All(), SizeIs(kMaxJobs));
  const JobTable::Dirty dirty = jobs_.TakeDirty();
  EXPECT_EQ(dirty.forgotten.size(), 5u);
  EXPECT_EQ(dirty.forgotten.count("j0-x"), 1u);
}

TEST_F(JobsTest, MemoryOfRecordsIsBounded) {
  JobSpec spec = Spec();
  Run();
  for (int step = 0; step < 3 * kRecentRecords; ++step) Step(step, step);
  EXPECT_THAT(jobs_.Find("bible-1")->recent, SizeIs(kRecentRecords));
  jobs_.GiveBackRecords(std::vector<StoredRecord>(kMaxUnsavedRecords + 10));
  EXPECT_THAT(jobs_.TakeRecords(), SizeIs(kMaxUnsavedRecords));
}

class RestartTest : public JobsTest {
 protected:
  void Restart(JobState state, int64_t step, double now) {
    Job job;
    job.id = "bible-1";
    job.number = 1;
    job.spec = Spec();
    job.plan = MakePlan(1);
    job.status.set_job_id("bible-1");
    job.status.set_state(state);
    job.status.set_generation(1);
    job.status.set_step(step);
    job.status.set_steps(100);
    job.status.set_checkpoint_step(-1);
    jobs_.Restore(job, -1, step, At(now));
  }
};

TEST_F(RestartTest, TrainingGoesOnWhenEveryDaemonComesBack) {
  Restart(JOB_RUNNING, 7, 0);
  for (int s = 0; s < kStages; ++s) {
    EXPECT_THAT(Reason(), HasSubstr("restarted"));
    EXPECT_THAT(jobs_.OnRegistered(Node(s), Back(s, 1), true, At(5 + s)), IsEmpty());
  }
  EXPECT_EQ(Reason(), "");
  EXPECT_EQ(State(), JOB_RUNNING);
  Step(7, 9);
  EXPECT_EQ(jobs_.Find("bible-1")->status.step(), 8);
  EXPECT_THAT(jobs_.Tick(members_, At(1000)), IsEmpty());
}

TEST_F(RestartTest, WhatCannotBeConfirmedIsPaused) {
  Restart(JOB_RUNNING, 7, 0);
  jobs_.OnRegistered("n0", Back(0, 1), true, At(5));
  jobs_.OnRegistered("n2", Back(2, 1), true, At(5));
  EXPECT_THAT(jobs_.Tick(members_, At(59)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(60)), SizeIs(2));
  EXPECT_THAT(Reason(),
              HasSubstr("daemon name1 did not come back after the coordinator's restart"));
  const Commands out = jobs_.OnRegistered("n1", Back(1, 1), true, At(70));
  ASSERT_THAT(out, SizeIs(1));
  EXPECT_EQ(out[0].message.stop().generation(), 1u);
}

TEST_F(RestartTest, ADaemonWithoutItsSessionIsGivenTenSeconds) {
  Restart(JOB_RUNNING, 7, 0);
  EXPECT_THAT(jobs_.OnRegistered("n0", Back(0, 0), true, At(5)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(14)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(15)), SizeIs(2));
  EXPECT_THAT(Reason(), HasSubstr("came back without its session"));
}

TEST_F(RestartTest, AJobThatEndedMeanwhileIsFinishedByItsLastCheckpoint) {
  Restart(JOB_RUNNING, 95, 0);
  jobs_.OnCheckpoint("bible-1", 100, At(1));
  for (int s = 0; s < kStages; ++s) jobs_.OnRegistered(Node(s), Back(s, 0), true, At(5));
  EXPECT_EQ(State(), JOB_FINISHED);
}

TEST_F(RestartTest, AStopUnderWayIsSaidAgain) {
  Restart(JOB_STOPPING, 7, 0);
  const Commands out = jobs_.OnRegistered("n0", Back(0, 1), true, At(5));
  ASSERT_THAT(out, SizeIs(1));
  EXPECT_TRUE(out[0].message.stop().graceful());
}

TEST_F(JobsTest, AStalledComputeThreadIsReportedThenEnds) {
  Run();
  Step(0, 2);
  isthmus::Register reg = Back(1, 1);
  reg.mutable_node()->set_address("h:1");
  members_.Register(reg, 5, At(0), At(0));
  auto beat = [&](double s, int64_t progress) {
    Heartbeat h;
    h.set_generation(1);
    h.set_progress(progress);
    ASSERT_TRUE(members_.OnHeartbeat("n1", 5, h, At(s)).ok());
  };
  for (int s = 3; s <= 63; s += 3) {
    beat(s, s <= 6 ? s : 6);
    const Commands out = jobs_.Tick(members_, At(s));
    if (s < 27) {
      EXPECT_EQ(Reason(), "") << s;
    } else if (s <= 46) {
      EXPECT_THAT(Reason(), HasSubstr("no progress of stage 1 on daemon name1 for")) << s;
      EXPECT_EQ(State(), JOB_RUNNING);
      EXPECT_EQ(Cause().kind(), FailureCause::NO_PROGRESS);
      EXPECT_EQ(Cause().node(), "n1");
    } else {
      EXPECT_EQ(State(), JOB_FAILED);
    }
  }
}

// The alert for it fired for ever after one failed job.
TEST_F(JobsTest, AFailedJobWantsAttentionUntilItIsSettled) {
  const auto wants = [&](double s) { return jobs_.WantsAttention(*jobs_.Find("bible-1"), At(s)); };
  Run();
  EXPECT_FALSE(wants(2));
  EXPECT_FALSE(HasLoss(jobs_.Find("bible-1")->status)) << "no step yet";
  Step(0, 2);
  EXPECT_TRUE(HasLoss(jobs_.Find("bible-1")->status));
  Tell(1, SessionEvent::FAILED, 10, 1);
  ASSERT_EQ(State(), JOB_FAILED);
  EXPECT_TRUE(wants(11));
  const double day = 24 * 3600;
  EXPECT_TRUE(wants(9 + day));
  EXPECT_FALSE(wants(10 + day)) << "nobody cares";
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(2), At(20)).ok());
  EXPECT_FALSE(wants(21)) << "resumed";
  Tell(1, SessionEvent::FAILED, 30, 0, 2);
  EXPECT_TRUE(wants(29 + day)) << "counted from the new end";
  ASSERT_TRUE(jobs_.Add("bible-2", 2, Spec(), false, 78).ok());
  EXPECT_FALSE(wants(40)) << "a newer job of that name";
}

}  // namespace
}  // namespace isthmus::coordinator
