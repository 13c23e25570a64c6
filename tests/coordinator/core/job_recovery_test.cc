// Jobs that go on by themselves after an interruption (recovery.automatic), and drained daemons.
#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kStages = 2;
constexpr char kJob[] = "bible-1";

absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }

class JobRecoveryTest : public ::testing::Test {
 protected:
  void Add(bool automatic = true, int attempts = 3) {
    JobSpec spec;
    spec.set_name("bible");
    spec.mutable_recipe()->set_steps(100);
    spec.mutable_recovery()->set_automatic(automatic);
    spec.mutable_recovery()->set_attempts(attempts);
    spec.mutable_checkpoint()->set_local(local_);
    if (large_) {  // 1.5 billion parameters
      spec.mutable_model()->set_layers(48);
      spec.mutable_model()->set_hidden(1600);
      spec.mutable_model()->set_heads(25);
      spec.mutable_model()->set_context(1024);
      spec.mutable_model()->set_vocabulary(50257);
    }
    ASSERT_TRUE(jobs_.Add(kJob, 1, spec, false, 77).ok());
  }
  void Start(uint64_t generation, int64_t from, double s) {
    Plan plan;
    plan.set_job_id(kJob);
    plan.set_generation(generation);
    plan.set_start_step(from);
    plan.set_from_checkpoint(from > 0);
    *plan.mutable_job() = Job_().spec;
    for (int stage = 0; stage < kStages; ++stage) {
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(stage);
      rank->set_first_layer(24 * stage);
      rank->set_end_layer(24 * (stage + 1));
      rank->set_node_id(absl::StrCat("n", stage));
      rank->set_node_name(absl::StrCat("name", stage));
    }
    ASSERT_TRUE(jobs_.Start(kJob, plan, At(s)).ok());
    for (int stage = 0; stage < kStages; ++stage)
      jobs_.OnEvent(absl::StrCat("n", stage), Event(stage, SessionEvent::PREPARED, from), At(s));
    ASSERT_EQ(State(), JOB_RUNNING);
  }
  // A job without a checkpoint of which nobody is heard from 2 s on, at 63 s.
  void RunUnheard() {
    Add();
    Start(1, 0, 0);
    Steps(0, 12, 1);
    for (int stage = 0; stage < kStages; ++stage)
      jobs_.OnStreamGone(absl::StrCat("n", stage), At(2));
    jobs_.Tick(members_, At(63));
  }
  Job Stored() {  // as the store keeps it
    Job stored;
    stored.id = kJob;
    stored.spec = Job_().spec;
    stored.status = Status();
    stored.plan = Job_().plan;
    stored.because = Job_().because;
    return stored;
  }
  SessionEvent Event(int stage, SessionEvent::State state, int64_t step) {
    SessionEvent e;
    e.set_job_id(kJob);
    e.set_generation(Status().generation());
    e.set_rank(stage);
    e.set_state(state);
    e.set_step(step);
    e.set_message("the link broke");
    return e;
  }
  void Steps(int64_t from, int64_t to, double s) {
    for (int64_t step = from; step < to; ++step) {
      for (int stage = 0; stage < kStages; ++stage) {
        StepRecord r;
        r.set_job_id(kJob);
        r.set_generation(Status().generation());
        r.set_step(step);
        r.set_rank(stage);
        r.set_has_loss(stage == kStages - 1);
        ASSERT_TRUE(jobs_.OnStep(absl::StrCat("n", stage), r, At(s), 1).ok());
      }
    }
  }
  Commands Fails(double s) {
    return jobs_.OnEvent("n0", Event(0, SessionEvent::FAILED, Status().step()), At(s));
  }
  // A daemon that is there; its last heartbeat shows that it runs `generation`.
  void Beats(const std::string& id, uint64_t generation, double s) {
    if (members_.Find(id) == nullptr) {
      isthmus::Register r;
      r.mutable_node()->set_id(id);
      r.mutable_node()->set_name(absl::StrCat("name of ", id));
      r.mutable_node()->set_address(absl::StrCat(id, ":7071"));
      r.set_instance("1");
      ASSERT_EQ(members_.Register(r, ++streams_, At(s), At(s)).kind, RegisterDecision::kAccepted);
    }
    Heartbeat beat;
    beat.set_generation(generation);
    ASSERT_TRUE(members_.OnHeartbeat(id, members_.Find(id)->stream, beat, At(s)).ok());
  }
  // Of a job that a drained daemon leaves, or whose user stops it then, when it has ended under a
  // coordinator that restarted meanwhile.
  JobState StateAfterARestart(bool by_user) {
    Add();
    Start(1, 0, 0);
    Steps(0, 12, 1);
    jobs_.OnDrained("n1", At(2));
    if (by_user) {
      EXPECT_TRUE(jobs_.Stop(kJob, false, At(3)).ok());
    }
    Job stored = Stored();
    JobTable after;
    after.Restore(stored, -1, 12, At(10));
    for (int stage = 0; stage < kStages; ++stage)
      after.OnEvent(absl::StrCat("n", stage), Event(stage, SessionEvent::FINISHED, 13), At(11));
    return after.Find(kJob)->status.state();
  }
  // What a daemon told of its disk: its part of these steps.
  void Keeps(int stage, const std::vector<int64_t>& steps) {
    KeptParts all;
    for (int64_t step : steps) {
      KeptPart& part = *all.add_parts();
      part.set_job_id(kJob);
      part.set_step(step);
      part.set_generation(Status().generation());
      part.set_stage(stage);
      part.set_stages(kStages);
    }
    jobs_.OnKept(absl::StrCat("n", stage), all);
  }
  // n1 is killed at step 12; 10 is stored, and 9 is what it had told last of its disk.
  void LoseN1() {
    Add();
    Start(1, 0, 0);
    Steps(0, 12, 1);
    jobs_.OnCheckpoint(kJob, 10, At(2));
    for (const char* id : {"n0", "n1"}) Beats(id, 1, 2);
    Keeps(0, {8, 9});
    Keeps(1, {8, 9});
    jobs_.OnStreamGone("n1", At(3));
    Fails(3);
    Keeps(0, {11, 12});
    Beats("n0", 0, 4);
    jobs_.Tick(members_, At(4));
  }
  const Job& Job_() { return *jobs_.Find(kJob); }
  const JobStatus& Status() { return Job_().status; }
  JobState State() { return Status().state(); }
  std::string Reason() { return Status().reason(); }

  int64_t local_ = 0;  // checkpoint.local
  bool large_ = false;
  JobTable jobs_;
  Membership members_;
  uint64_t streams_ = 0;
};

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

// What was heard of n1's disk last was older than what lay there when it was killed: the job went
// on from the stored checkpoint before it was back.
TEST_F(JobRecoveryTest, ADaemonThatKeepsLocalCheckpointsHasTimeToTellOfThem) {
  local_ = 1;
  LoseN1();
  EXPECT_THAT(Reason(), HasSubstr("a newer one may lie on the disk of name1, which has not told"));
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(32)));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(33))) << "not for ever";
  Keeps(1, {10, 11});  // killed before it kept 12
  jobs_.LookAtKept(kJob);
  EXPECT_EQ(Job_().kept_step, 11);
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(33))) << "it is on its way";
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(83))) << "it should have been here long ago";
  EXPECT_THAT(Reason(), HasSubstr("checkpoint 11 lies on the disks of its daemons"));
  jobs_.OnCheckpoint(kJob, 11, At(34));
  Beats("n1", 0, 35);
  jobs_.Tick(members_, At(35));
  EXPECT_THAT(Reason(),
              HasSubstr("of step 11 (the 1 step after it is lost): it goes on from there"));
}

// A buddy has it: nobody waits for the daemon that was lost.
TEST_F(JobRecoveryTest, TheCopyOfABuddyIsTakenAtOnce) {
  local_ = 1;
  LoseN1();
  KeptParts all;
  for (int stage : {0, 1}) {
    KeptPart& part = *all.add_parts();
    part.set_job_id(kJob);
    part.set_step(11);
    part.set_generation(1);
    part.set_stage(stage);
    part.set_stages(kStages);
  }
  KeptPart& own = *all.add_parts();  // of which the copy was under way
  own = all.parts(0);
  own.set_step(12);
  jobs_.OnKept("n0", all);
  const Commands asked = jobs_.Tick(members_, At(5));
  ASSERT_THAT(asked, SizeIs(kStages));
  for (int stage : {0, 1}) {
    EXPECT_EQ(asked[stage].node_id, "n0");
    EXPECT_EQ(asked[stage].message.put_kept().step(), 11);
    EXPECT_EQ(asked[stage].message.put_kept().stage(), stage);
  }
  EXPECT_EQ(KeptWords(Job_()),
            "the parts of checkpoint 11 lie on the disks of name0 and are on their way here: a "
            "resume goes on from it once it is whole");
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(6)));
  jobs_.OnCheckpoint(kJob, 11, At(7));
  jobs_.Tick(members_, At(7));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(7)));
}

// Gigabytes over a slow path for a few steps: the job waited for hours.
TEST_F(JobRecoveryTest, WhatTakesLongerToComeThanItsStepsIsMadeAgain) {
  local_ = 1;
  large_ = true;
  LoseN1();
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5))) << "not for n1 to tell either";
  Keeps(1, {11, 12});
  EXPECT_THAT(jobs_.Tick(members_, At(5)), IsEmpty());
  EXPECT_EQ(Job_().kept_step, -1);
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5)));
  EXPECT_THAT(Reason(), HasSubstr("of step 10 (the 2 steps after it are lost)"));
}

TEST_F(JobRecoveryTest, WithNothingStoredWhatLiesOnDisksIsWorthAnyWait) {
  local_ = 1;
  large_ = true;
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  Fails(3);
  for (int stage = 0; stage < kStages; ++stage) Keeps(stage, {11, 12});
  jobs_.LookAtKept(kJob);
  EXPECT_EQ(Job_().kept_step, 12);
  EXPECT_TRUE(jobs_.WaitsForKept(Job_(), At(3600)));
}

// A job that fails at each step that it makes again got on by one step each time, for ever.
TEST_F(JobRecoveryTest, WhatAnInterruptionBringsIsNoProgressWhereItIsOfTheFirstSteps) {
  local_ = 1;
  Add(true, 3);
  Start(1, 0, 0);
  Steps(0, 2, 1);
  Fails(2);
  jobs_.OnCheckpoint(kJob, 2, At(3));
  EXPECT_EQ(Job_().interruptions, 1);
  Start(2, 2, 4);
  Steps(2, 9, 5);
  Fails(6);
  EXPECT_EQ(Job_().interruptions, 2);
  jobs_.OnCheckpoint(kJob, 9, At(7));
  EXPECT_EQ(Job_().interruptions, 0) << "it got on";
}

TEST_F(JobRecoveryTest, OfOneThatWasStoppedAtOnceNoLocalCheckpointIsAskedFor) {
  local_ = 1;
  Add();
  Start(1, 0, 0);
  Steps(0, 12, 1);
  ASSERT_TRUE(jobs_.Stop(kJob, true, At(2)).ok());
  for (int stage = 0; stage < kStages; ++stage) {
    Keeps(stage, {11, 12});
    Beats(absl::StrCat("n", stage), 0, 3);
  }
  EXPECT_THAT(jobs_.Tick(members_, At(4)), IsEmpty());
  EXPECT_EQ(Job_().kept_step, -1);
}

TEST_F(JobRecoveryTest, NobodyWaitsForADiskWithoutLocalCheckpoints) {
  LoseN1();
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5)));
}

TEST_F(JobRecoveryTest, NobodyWaitsForADiskWhereTheOthersHoldNothingLater) {
  local_ = 1;
  LoseN1();
  Keeps(0, {9, 10});
  jobs_.Tick(members_, At(5));
  EXPECT_FALSE(jobs_.WaitsForKept(Job_(), At(5)));
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
