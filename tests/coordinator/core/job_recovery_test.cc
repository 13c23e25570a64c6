// Jobs that go on by themselves after an interruption (recovery.automatic), and drained daemons.
#include "tests/coordinator/core/job_recovery_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST_F(JobRecoveryTest, AnInterruptedJobWaitsAsAResumedOneDoes) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  jobs_.OnCheckpoint(kJob, 10, At(2));
  EXPECT_THAT(Fails(3), SizeIs(1));  // the other one is told to stop
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_TRUE(Job_().recovering && Job_().wait_for_nodes);
  EXPECT_FALSE(Job_().step_asked || Job_().accepts_changes);
  EXPECT_THAT(Reason(), HasSubstr("the link broke; "));
  EXPECT_THAT(Reason(), EndsWith(": it goes on from the newest by itself"));
  jobs_.SetPendingReason(kJob, "waiting for daemons: two are wanted");
  EXPECT_THAT(Reason(), EndsWith("by itself; waiting for daemons: two are wanted"));
  EXPECT_EQ(Status().cause().kind(), FailureCause::SESSION_FAILED);
  EXPECT_FALSE(jobs_.WantsAttention(Job_(), At(302)));
  EXPECT_TRUE(jobs_.WantsAttention(Job_(), At(303))) << "it waits for long";
  Start(2, 10, 4);
  EXPECT_FALSE(Job_().recovering);
  EXPECT_EQ(Status().recoveries(), 1);
  EXPECT_THAT(Reason(), IsEmpty());
}

TEST_F(JobRecoveryTest, WithoutItAJobPauses) {
  Add(false);
  Start(1, 0, 0);
  Steps(0, 12, 1);
  jobs_.OnCheckpoint(kJob, 10, At(2));
  Fails(3);
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), HasSubstr("submit --resume"));
  EXPECT_THAT(Reason(), Not(HasSubstr("by itself")));
}

TEST_F(JobRecoveryTest, AJobThatNeverRanFailsAtOnce) {
  Add();
  Start(1, 0, 0);
  Fails(1);
  EXPECT_EQ(State(), JOB_FAILED);
}

TEST_F(JobRecoveryTest, InterruptionsWithoutACheckpointBetweenThemAreCounted) {
  Add(true, 3);
  Start(1, 0, 0);
  Steps(0, 12, 1);
  jobs_.OnCheckpoint(kJob, 10, At(2));
  Fails(3);
  EXPECT_EQ(Job_().not_before, At(3));  // the first time at once
  Start(2, 10, 4);
  Steps(10, 12, 5);
  jobs_.OnCheckpoint(kJob, 12, At(6));  // it got on
  Fails(7);
  EXPECT_EQ(Job_().not_before, At(7));
  Start(3, 12, 8);
  Fails(9);
  EXPECT_EQ(Job_().not_before, At(10));
  EXPECT_EQ(State(), JOB_PENDING);
  Start(4, 12, 10);
  Fails(11);
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), HasSubstr("it does not go on by itself any more: 3 interruptions without"));
  Start(5, 12, 12);  // by a hand: counted anew
  Fails(13);
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_EQ(Status().recoveries(), 3);
}

TEST_F(JobRecoveryTest, WhatTheUserStopsStaysStopped) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(2)).ok());
  Fails(3);
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_THAT(Reason(), Not(HasSubstr("by itself")));
  Start(2, 0, 4);
  Steps(0, 3, 5);
  Fails(6);
  ASSERT_EQ(State(), JOB_PENDING);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(7)).ok());
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_FALSE(Job_().recovering);
  EXPECT_THAT(Reason(), HasSubstr("the link broke; stopped by the user before it went on; "));
}

// What the disks had told was unsure again.
TEST_F(JobRecoveryTest, AStopKeepsWhatTheDisksTold) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  Fails(3);
  ASSERT_THAT(Reason(), HasSubstr("may lie on the disks of name0 and name1"));
  for (int stage = 0; stage < kStages; ++stage) Beats(absl::StrCat("n", stage), 0, 4);
  jobs_.Tick(members_, At(5));
  ASSERT_THAT(Reason(), Not(HasSubstr("may lie")));
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(7)).ok());
  EXPECT_THAT(Reason(), Not(HasSubstr("may lie")));
}

TEST_F(JobRecoveryTest, OneThatADaemonLeavesMayBeStoppedMeanwhile) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  jobs_.OnDrained("n1", At(2));
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(3)).ok());
  jobs_.OnCheckpoint(kJob, 13, At(4));
  for (int stage = 0; stage < kStages; ++stage)
    jobs_.OnEvent(absl::StrCat("n", stage), Event(stage, SessionEvent::FINISHED, 13), At(4));
  EXPECT_EQ(State(), JOB_STOPPED);
}

TEST_F(JobRecoveryTest, DifferentTextsAndWhatTimeDoesNotCurePause) {
  Add();
  Start(1, 0, 0);
  Steps(0, 3, 1);
  for (int stage = 0; stage < kStages; ++stage) {
    SessionEvent e = Event(stage, SessionEvent::RUNNING, 3);
    e.set_state(SessionEvent::PREPARED);
    e.set_corpus_fingerprint(7 + stage);
    jobs_.OnEvent(absl::StrCat("n", stage), e, At(2));
  }
  EXPECT_EQ(Status().cause().kind(), FailureCause::DATA_DIFFERS);
  EXPECT_EQ(State(), JOB_FAILED);
  Start(2, 0, 3);
  Steps(0, 3, 4);
  Fails(5);
  jobs_.GiveUpRecovery(kJob, "the text is another", At(6));
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("; it can't go on by itself: the text is another; "));
}

TEST_F(JobRecoveryTest, ADaemonThatLeavesOrIsDrainedDoesNotStopIt) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  EXPECT_THAT(jobs_.OnDrained("n1", At(2)), SizeIs(kStages));
  EXPECT_EQ(State(), JOB_STOPPING);
  EXPECT_EQ(Reason(), "daemon name1 left (drained): the step is finished and a checkpoint written");
  jobs_.OnCheckpoint(kJob, 13, At(3));
  for (int stage = 0; stage < kStages; ++stage)
    jobs_.OnEvent(absl::StrCat("n", stage), Event(stage, SessionEvent::FINISHED, 13), At(3));
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_EQ(Reason(),
            "daemon name1 left (drained); the job ended in good order after step 13; its last "
            "checkpoint is of step 13: it goes on from there by itself");
  Start(2, 13, 4);
  Steps(13, 15, 5);
  Leaving leaving;
  leaving.set_reason("SIGTERM");
  jobs_.OnLeaving("n0", leaving, At(5));
  jobs_.OnStreamGone("n0", At(6));  // before it was through
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_THAT(Reason(), HasSubstr("left (SIGTERM) before the job had ended in good order"));
}

TEST_F(JobRecoveryTest, WaitsForDaemonsThatAreThereToEnd) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  Beats("n0", 1, 2);
  Fails(3);
  EXPECT_TRUE(jobs_.WaitsForEnds(Job_(), members_, At(4)));
  Beats("n0", 1, 5);  // it still ends its session
  EXPECT_TRUE(jobs_.WaitsForEnds(Job_(), members_, At(6)));
  EXPECT_FALSE(jobs_.WaitsForEnds(Job_(), members_, At(23))) << "not for ever";
  Beats("n0", 0, 7);
  EXPECT_FALSE(jobs_.WaitsForEnds(Job_(), members_, At(8))) << "n1 is not there at all";
  members_.OnLeaving("n0", "SIGTERM");
  Beats("n0", 1, 9);
  EXPECT_FALSE(jobs_.WaitsForEnds(Job_(), members_, At(10))) << "it gets no job anyway";
}

TEST_F(JobRecoveryTest, AJobOfWhichNobodyIsHeardIsLeftToItsSessionsForAWhile) {
  RunUnheard();
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_TRUE(Status().out_of_touch());
  jobs_.Tick(members_, At(600));
  EXPECT_EQ(State(), JOB_FAILED);
  jobs_.Tick(members_, At(663));
  jobs_.Tick(members_, At(664));
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_EQ(Job_().interruptions, 1);
  isthmus::Register back;  // nobody took it over yet: they go on
  back.mutable_node()->set_id("n1");
  back.set_running_generation(1);
  back.set_running_job_id(kJob);
  EXPECT_THAT(jobs_.OnRegistered("n1", back, false, At(900)), IsEmpty());
  EXPECT_EQ(State(), JOB_RUNNING);
  EXPECT_FALSE(Job_().recovering || Job_().wait_for_nodes || Status().out_of_touch());
  EXPECT_EQ(Job_().interruptions, 0);
}

TEST_F(JobRecoveryTest, OneOfWhichNobodyIsHeardMayBeStopped) {
  RunUnheard();
  ASSERT_TRUE(Status().out_of_touch());
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(64)).ok());
  jobs_.Tick(members_, At(700));
  EXPECT_EQ(State(), JOB_STOPPED);
}

TEST_F(JobRecoveryTest, ASessionThatEndedUnheardLetsItGoOnAtOnce) {
  RunUnheard();
  ASSERT_EQ(State(), JOB_FAILED);
  isthmus::Register back;
  back.mutable_node()->set_id("n0");
  jobs_.OnRegistered("n0", back, false, At(90));
  Fails(91);
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_FALSE(Status().out_of_touch());
  EXPECT_THAT(Reason(), HasSubstr("the link broke"));
}

TEST_F(JobRecoveryTest, OneThatANewerJobTookTheNameOfStays) {
  RunUnheard();
  JobSpec newer = Job_().spec;
  ASSERT_TRUE(jobs_.Add("bible-2", 2, newer, false, 78).ok());
  ASSERT_TRUE(jobs_.Stop("bible-2", false, At(100)).ok());
  jobs_.Tick(members_, At(700));
  EXPECT_EQ(State(), JOB_FAILED);
}

TEST_F(JobRecoveryTest, AFinishedJobWaitsForNothing) {
  Add();
  Start(1, 0, 0);
  Steps(0, 100, 1);
  jobs_.OnCheckpoint(kJob, 90, At(2));
  Fails(3);
  ASSERT_EQ(State(), JOB_PENDING);
  jobs_.OnCheckpoint(kJob, 100, At(4));
  EXPECT_EQ(State(), JOB_FINISHED);
  EXPECT_FALSE(Job_().recovering);
  EXPECT_FALSE(jobs_.WantsAttention(Job_(), At(1000)));
  jobs_.GiveUpRecovery(kJob, "it was tried meanwhile", At(5));
  EXPECT_EQ(State(), JOB_FINISHED);
}

TEST_F(JobRecoveryTest, ADaemonMayBeDrainedWhileAJobStarts) {
  Add();
  Plan plan;
  plan.set_job_id(kJob);
  plan.set_generation(1);
  *plan.mutable_job() = Job_().spec;
  plan.add_ranks()->set_node_id("n1");
  ASSERT_TRUE(jobs_.Start(kJob, plan, At(0)).ok());
  EXPECT_THAT(jobs_.OnDrained("n1", At(1)), SizeIs(1));
  EXPECT_EQ(State(), JOB_PENDING);
}

// A host-by-host upgrade: a daemon leaves, and the coordinator restarts before its job has ended.
TEST_F(JobRecoveryTest, WhyItStopsIsKnownAfterARestart) {
  EXPECT_EQ(StateAfterARestart(false), JOB_PENDING);
}

TEST_F(JobRecoveryTest, ThatTheUserStopsItIsKnownAfterARestart) {
  EXPECT_EQ(StateAfterARestart(true), JOB_STOPPED);
}

TEST_F(JobRecoveryTest, WaitsForAKeeperFromWhenItWent) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  Fails(3);
  Job job = Job_();
  job.kept_step = 20;
  EXPECT_TRUE(jobs_.WaitsForKept(job, At(1000))) << "it is on its way";
  job.kept_away = At(1000);
  EXPECT_TRUE(jobs_.WaitsForKept(job, At(1020)));
  EXPECT_FALSE(jobs_.WaitsForKept(job, At(1030)));
  job.kept_step = -1;
  EXPECT_FALSE(jobs_.WaitsForKept(job, At(4)));
  job.restored = true;  // no daemon has told a new coordinator yet
  ASSERT_FALSE(job.untold.empty());
  EXPECT_TRUE(jobs_.WaitsForKept(job, At(4)));
  EXPECT_FALSE(jobs_.WaitsForKept(job, At(34)));
}

TEST_F(JobRecoveryTest, ARestartedDaemonShowsThatItsSessionIsOver) {
  RunUnheard();
  isthmus::Register back;
  back.mutable_node()->set_id("n1");
  back.mutable_node()->set_name("name1");
  jobs_.OnRegistered("n1", back, true, At(70));
  EXPECT_EQ(State(), JOB_PENDING);
}

TEST_F(JobRecoveryTest, OneThatWaitsGoesOnByItselfAfterARestart) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  jobs_.OnCheckpoint(kJob, 10, At(2));
  Fails(3);
  JobTable after;
  Job stored = Stored();
  stored.wait_for_nodes = true;
  after.Restore(stored, 10, 12, At(10));
  EXPECT_TRUE(after.Find(kJob)->recovering);
  EXPECT_THAT(after.Find(kJob)->status.reason(), EndsWith(" by itself"));
}

TEST_F(JobRecoveryTest, AnInterruptionCountsOnce) {
  RunUnheard();
  jobs_.Tick(members_, At(664));
  isthmus::Register back;
  back.mutable_node()->set_id("n1");
  jobs_.OnRegistered("n1", back, true, At(700));
  Fails(701);
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_EQ(Job_().interruptions, 1);
  EXPECT_FALSE(Status().out_of_touch());
}

TEST_F(JobRecoveryTest, WhatWasGivenUpStaysSo) {
  RunUnheard();
  jobs_.Tick(members_, At(664));
  ASSERT_EQ(State(), JOB_PENDING);
  jobs_.GiveUpRecovery(kJob, "the text\nis another", At(670));
  jobs_.Tick(members_, At(1400));
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("by itself: the text is another; "));
}

TEST_F(JobRecoveryTest, APlanThatCanNotBeStoredIsTriedAgainUnlessAUserAsked) {
  for (const bool asked : {true, false}) {
    if (asked) Add();
    Start(asked ? 1 : 3, 0, 0);
    Steps(0, 12, 1);
    Fails(2);
    Plan plan = Job_().plan;
    plan.set_generation(asked ? 2 : 4);
    ASSERT_TRUE(jobs_.Start(kJob, plan, At(3)).ok());
    jobs_.NotStored(kJob, "the disk is full", asked, At(4));
    EXPECT_EQ(State(), asked ? JOB_FAILED : JOB_PENDING);
    EXPECT_THAT(Reason(), HasSubstr("its plan can't be stored: the disk is full; "));
  }
}

// A coordinator that stood still heard nobody: that a keeper is away counts from then on.
TEST_F(JobRecoveryTest, TheCoordinatorsOwnPauseGivesNothingUp) {
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  Fails(3);
  Job stored = Stored();
  stored.wait_for_nodes = true;
  stored.kept_step = 12;
  stored.kept_away = At(10);
  JobTable after;
  after.Restore(stored, -1, 12, At(10));
  after.Forgive(absl::Seconds(60));
  Job job = *after.Find(kJob);
  job.untold.clear();
  EXPECT_TRUE(after.WaitsForKept(job, At(75)));
  EXPECT_FALSE(after.WaitsForKept(job, At(100)));
}

}  // namespace
}  // namespace isthmus::coordinator
