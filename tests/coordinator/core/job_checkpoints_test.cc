// What JobTable says of checkpoints that are stored and of those that could not be, and how it
// forgets jobs.
#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobCheckpointsTest : public ::testing::Test {
 protected:
  static absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  static Plan MakePlan(uint64_t generation, int64_t start = 0) {
    Plan plan;
    plan.set_job_id("bible-1");
    plan.set_generation(generation);
    plan.set_start_step(start);
    plan.set_from_checkpoint(start > 0);
    plan.mutable_job()->set_name("bible");
    plan.mutable_job()->mutable_recipe()->set_steps(100);
    plan.mutable_job()->mutable_checkpoint()->set_every(10);
    plan.add_ranks()->set_node_id("n0");
    plan.mutable_ranks(0)->set_node_name("n0");
    plan.mutable_deadlines()->set_step_ms(20000);
    return plan;
  }
  void Tell(SessionEvent::State state, uint64_t generation = 1, int64_t step = 0) {
    SessionEvent e;
    e.set_job_id("bible-1");
    e.set_generation(generation);
    e.set_state(state);
    e.set_step(step);
    jobs_.OnEvent("n0", e, At(1));
  }
  void Run(uint64_t generation = 1, int64_t start = 0) {
    ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(generation, start), At(0)).ok());
    Tell(SessionEvent::PREPARED, generation);
  }
  void StepsUntil(int64_t end) {
    for (; next_ < end; ++next_) {
      StepRecord r;
      r.set_job_id("bible-1");
      r.set_generation(1);
      r.set_step(next_);
      r.set_has_loss(true);
      ASSERT_TRUE(jobs_.OnStep("n0", r, At(2), 1000).ok());
    }
  }
  bool Fails(int64_t step, const std::string& why = "the disk is full", uint64_t generation = 1,
             int stage = 0, int replica = 0) {
    return jobs_.OnCheckpointFailed("bible-1", generation, step, {stage, replica, "", why}, At(3));
  }
  JobStatus Status() { return jobs_.Status(*jobs_.Find("bible-1"), At(4)); }
  std::string Warning() { return Status().warnings_size() == 1 ? Status().warnings(0) : ""; }

  void SetUp() override {
    ASSERT_TRUE(jobs_.Add("bible-1", 1, MakePlan(1).job(), false, 77).ok());
    Run();
  }

  JobTable jobs_;
  int64_t next_ = 0;
};

TEST_F(JobCheckpointsTest, TheFirstOneThatFailsIsAWarningUntilOneIsStored) {
  StepsUntil(12);
  EXPECT_THAT(Status().warnings(), IsEmpty());
  EXPECT_TRUE(Fails(10));
  EXPECT_FALSE(Fails(10)) << "another part of it, or another try";
  EXPECT_EQ(Status().failed_checkpoints(), 1);
  EXPECT_THAT(Warning(), HasSubstr("checkpoints are not stored: that of step 10 could not be: the "
                                   "disk is full. A job that ends now starts again at step 0: no "
                                   "checkpoint is stored yet"));
  EXPECT_TRUE(Fails(20));
  EXPECT_EQ(Status().failed_checkpoints(), 2);
  EXPECT_THAT(Warning(), HasSubstr("that of step 20 and 1 before it could not be"));
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  EXPECT_EQ(Status().reason(), "");
  jobs_.OnCheckpoint("bible-1", 30, At(5));
  EXPECT_EQ(Status().failed_checkpoints(), 0);
  EXPECT_THAT(Status().warnings(), IsEmpty());
  EXPECT_FALSE(Fails(30)) << "it is stored: a late word";
  EXPECT_TRUE(Fails(40));
  EXPECT_THAT(Warning(), HasSubstr("goes on from step 30, the newest stored checkpoint"));
  EXPECT_FALSE(Fails(50, "x", 7)) << "of another generation";
}

TEST_F(JobCheckpointsTest, AtTheEndTheReasonSaysThatItIsHeld) {
  StepsUntil(100);
  EXPECT_TRUE(Fails(100));
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  EXPECT_EQ(Status().reason(), "the last checkpoint is held and tried again: the disk is full");
  EXPECT_EQ(Status().cause().kind(), FailureCause::CHECKPOINT_HELD);
  jobs_.OnCheckpoint("bible-1", 100, At(5));
  EXPECT_EQ(Status().reason(), "");
  Tell(SessionEvent::FINISHED, 1, 100);
  EXPECT_EQ(Status().state(), JOB_FINISHED);
}

// Two stages that tried again in turn made a line in the log each time.
TEST_F(JobCheckpointsTest, TheReasonOfAHeldOneChangesWithTheSetOfCausesAlone) {
  StepsUntil(100);
  Fails(100, "6 MB are too many", 1, 1);
  EXPECT_THAT(Status().reason(), testing::EndsWith("tried again: 6 MB are too many"));
  Fails(100, "5 MB are too many", 1, 0);
  const std::string both = Status().reason();
  EXPECT_THAT(both, testing::EndsWith("tried again: 5 MB are too many; 6 MB are too many"));
  for (int i = 0; i < 3; ++i) {
    Fails(100, "6 MB are too many", 1, 1);
    EXPECT_EQ(Status().reason(), both);
    Fails(100, "5 MB are too many", 1, 0);
    EXPECT_EQ(Status().reason(), both);
  }
  Fails(100, "6 MB are too many", 1, 0);
  EXPECT_THAT(Status().reason(), testing::EndsWith("tried again: 6 MB are too many"));
}

// Replicas of one stage took each other's place, and the words changed with every try.
TEST_F(JobCheckpointsTest, EachReplicaHasItsSay) {
  StepsUntil(12);
  Fails(10, "6 MB are too many", 1, 0, 0);
  Fails(10, "4 MB are too many", 1, 0, 1);
  const std::string both = Warning();
  EXPECT_THAT(both, testing::AllOf(HasSubstr("6 MB are too many"), HasSubstr("4 MB are too many")));
  Fails(10, "6 MB are too many", 1, 0, 0);
  EXPECT_EQ(Warning(), both);
}

// The same cause stood there once for each stage, 600 characters of it.
TEST_F(JobCheckpointsTest, ACauseOfSeveralPartsIsSaidOnce) {
  StepsUntil(12);
  const std::string why =
      "the coordinator's --state-dir has less room than that (of what is free there, 64.0 MiB stay "
      "for the database): free some disk, or keep fewer (checkpoint.keep)";
  const auto fail = [&](int stage, const std::string& words) {
    jobs_.OnCheckpointFailed(
        "bible-1", 1, 10,
        {stage, 0, absl::StrCat("weights.safetensors of stage ", stage, " (", 10 + stage, " MiB)"),
         words},
        At(3));
  };
  fail(0, why);
  fail(1, why);
  EXPECT_EQ(Warning(), absl::StrCat("checkpoints are not stored: that of step 10 could not be: "
                                    "weights.safetensors of stage 0 (10 MiB) and "
                                    "weights.safetensors of stage 1 (11 MiB): ",
                                    why,
                                    ". A job that ends now starts again at step 0: no checkpoint "
                                    "is stored yet"));
  fail(2, "the path is read-only");
  EXPECT_THAT(Warning(), HasSubstr("checkpoint.keep); weights.safetensors of stage 2 (12 MiB): the "
                                   "path is read-only. A job"));
  for (int stage = 3; stage < 20; ++stage) fail(stage, why);
  EXPECT_LT(Warning().size(), 700u) << "of many parts the first are named";
}

// On a full disk each try was a write to the database, and a line for whoever watched.
TEST_F(JobCheckpointsTest, TheSameTroubleAtTheNextTryIsNoChange) {
  StepsUntil(90);
  Fails(90);
  StepsUntil(100);
  Fails(100);
  const uint64_t version = jobs_.Find("bible-1")->version;
  jobs_.TakeDirty();
  Fails(100);
  EXPECT_THAT(jobs_.TakeDirty().changed, IsEmpty());
  EXPECT_EQ(jobs_.Find("bible-1")->version, version);
  Fails(100, "the disk is gone");
  EXPECT_THAT(jobs_.TakeDirty().changed, ElementsAre("bible-1"));
  ASSERT_TRUE(jobs_.Stop("bible-1", false, At(4)).ok());
  Fails(100, "the disk is gone");
  EXPECT_THAT(Status().reason(), HasSubstr("held and tried again: the disk is gone"))
      << "it is said again where other words took its place";
}

TEST_F(JobCheckpointsTest, AlsoWhenItIsStopped) {
  StepsUntil(5);
  ASSERT_TRUE(jobs_.Stop("bible-1", false, At(2)).ok());
  Fails(5);
  EXPECT_EQ(Status().state(), JOB_STOPPING);
  EXPECT_THAT(Status().reason(), HasSubstr("held and tried again"));
}

TEST_F(JobCheckpointsTest, NoneInThreePeriodsIsAWarningThoughNobodyComplained) {
  StepsUntil(29);
  EXPECT_THAT(Status().warnings(), IsEmpty());
  StepsUntil(30);
  EXPECT_THAT(Warning(), HasSubstr("one is due every 10 steps, and none came in the last 30"));
  EXPECT_EQ(Status().failed_checkpoints(), 0);
  jobs_.OnCheckpoint("bible-1", 20, At(5));
  EXPECT_THAT(Status().warnings(), IsEmpty());
}

// They were put while nobody was there to take them.
TEST_F(JobCheckpointsTest, ThoseThatFellDueWhileTheCoordinatorWasAwayAreNotOverdue) {
  StepsUntil(29);
  JobTable after;
  Job stored = *jobs_.Find("bible-1");
  after.Restore(stored, stored.status.checkpoint_step(), 29, At(10));
  const auto warnings = [&](int64_t step, double s) {
    StepRecord r;
    r.set_job_id("bible-1");
    r.set_generation(1);
    r.set_step(step);
    r.set_step_s(0.1);
    EXPECT_TRUE(after.OnStep("n0", r, At(s), 1000).ok());
    return after.Status(*after.Find("bible-1"), At(s)).warnings_size();
  };
  for (int64_t step = 29; step < 40; ++step) EXPECT_EQ(warnings(step, 11), 0) << step;
  EXPECT_EQ(warnings(40, 13.9), 0) << "thirty steps take three seconds";
  EXPECT_EQ(warnings(41, 14.1), 1);
}

TEST_F(JobCheckpointsTest, ARestartOfTheCoordinatorKeepsItAndANewGenerationDropsIt) {
  StepsUntil(12);
  Fails(10);
  const std::string words = Warning();
  Job stored = *jobs_.Find("bible-1");
  const auto restored = [&](const JobStatus& status) {
    stored.status = status;
    stored.checkpoint_trouble.clear();
    JobTable after;
    after.Restore(stored, stored.status.checkpoint_step(), 12, At(9));
    return after.Status(*after.Find("bible-1"), At(9));
  };
  JobStatus status = Status();
  status.mutable_warnings()->Clear();
  status.add_warnings("of another kind, made anew each time");
  status.add_warnings(words);
  EXPECT_THAT(restored(status).warnings(), ElementsAre(words));
  status.clear_checkpoint_trouble();
  EXPECT_THAT(restored(status).warnings(), ElementsAre(words)) << "stored by an older version";
  status.set_warnings(1, "in other words");
  EXPECT_THAT(restored(status).checkpoint_trouble(), testing::StartsWith("in other words. A job"));
  status.set_failed_checkpoints(0);
  EXPECT_THAT(restored(status).warnings(), IsEmpty());
  Tell(SessionEvent::FAILED);
  EXPECT_THAT(Status().warnings(), ElementsAre(words)) << "what was lost, and why";
  Run(2);
  EXPECT_THAT(Status().warnings(), IsEmpty());
  EXPECT_EQ(Status().failed_checkpoints(), 0);
  EXPECT_EQ(Status().checkpoint_step(), -1);
}

// A daemon was killed between keeping its part and putting it: what it keeps is no loss.
class KeptCheckpointTest : public JobCheckpointsTest {
 protected:
  void Join(double s, uint64_t stream, uint64_t generation = 0) {
    isthmus::Register hello;
    hello.mutable_node()->set_id("n0");
    hello.mutable_node()->set_name("n0");
    hello.mutable_node()->set_address("n0:1");
    hello.set_instance("p");
    ASSERT_EQ(members_.Register(hello, stream, At(s), At(s)).kind, RegisterDecision::kAccepted);
    Heartbeat beat;
    beat.set_generation(generation);
    ASSERT_TRUE(members_.OnHeartbeat("n0", stream, beat, At(s)).ok());
  }
  static KeptParts Kept(const std::vector<int64_t>& steps, uint64_t generation = 1) {
    KeptParts all;
    for (int64_t step : steps) {
      KeptPart& part = *all.add_parts();
      part.set_job_id("bible-1");
      part.set_step(step);
      part.set_generation(generation);
      part.set_stages(1);
    }
    return all;
  }
  // Steps of the checkpoints that are asked for.
  std::vector<int64_t> Asked(double s) {
    std::vector<int64_t> steps;
    for (const Command& c : jobs_.Tick(members_, At(s))) {
      EXPECT_EQ(c.node_id, "n0");
      if (c.message.has_put_kept()) steps.push_back(c.message.put_kept().step());
    }
    return steps;
  }
  Membership members_;
};

TEST_F(KeptCheckpointTest, IsAskedForOnceItsJobHasEndedAndMakesItsLossGood) {
  StepsUntil(35);
  jobs_.OnCheckpoint("bible-1", 20, At(3));
  jobs_.OnKept("n0", Kept({20, 30}));
  Join(3, 1, 1);
  EXPECT_THAT(Asked(3), IsEmpty()) << "it runs: its session puts it";
  Tell(SessionEvent::FAILED, 1, 35);
  EXPECT_THAT(Status().reason(), HasSubstr("may lie on the disk of n0, which has not told yet"));
  EXPECT_THAT(Asked(4), IsEmpty());
  EXPECT_THAT(Warning(), HasSubstr("daemon n0 works for a job")) << "its heartbeat says so";
  Join(5, 2);
  EXPECT_THAT(Asked(5), ElementsAre(30));
  EXPECT_THAT(Warning(), HasSubstr("the parts of checkpoint 30 lie on the disks of"));
  EXPECT_THAT(Asked(64), IsEmpty());
  EXPECT_THAT(Asked(65), ElementsAre(30)) << "once a minute";
  jobs_.OnCheckpoint("bible-1", 30, At(66));
  EXPECT_THAT(Status().warnings(), IsEmpty()) << "at once: a resume may begin";
  EXPECT_THAT(Status().reason(), HasSubstr("its last checkpoint is of step 30 (the 5 steps after "
                                           "it are lost)"));
  EXPECT_EQ(Status().state(), JOB_PAUSED);
  EXPECT_THAT(Asked(200), IsEmpty());
  EXPECT_THAT(Status().warnings(), IsEmpty());
}

// "None is stored yet: a job that ends now starts again at step 0" while all of it lay on disks.
TEST_F(KeptCheckpointTest, WhatDaemonsKeepIsNoLossInTheWarningEither) {
  StepsUntil(12);
  Fails(10);
  EXPECT_THAT(Warning(), HasSubstr("starts again at step 0: no checkpoint is stored yet"));
  jobs_.OnKept("n0", Kept({10}));
  EXPECT_THAT(Warning(), HasSubstr("the disk is full. A job that ends now goes on from step 10, "
                                   "whose checkpoint lies on its daemons' disks"));
  Job stored = *jobs_.Find("bible-1");
  stored.status = Status();
  JobTable after;
  after.Restore(stored, -1, 12, At(9));
  EXPECT_THAT(after.Status(*after.Find("bible-1"), At(9)).warnings(0),
              testing::EndsWith("the disk is full. A job that ends now starts again at step 0: no "
                                "checkpoint is stored yet"))
      << "no daemon has told that one yet";
}

TEST_F(KeptCheckpointTest, WaitsForADaemonThatIsAwayAndSaysSo) {
  StepsUntil(12);
  Join(2, 7);
  jobs_.OnKept("n0", Kept({10}));
  members_.OnStreamGone("n0", 7, At(3));
  Tell(SessionEvent::FAILED, 1, 12);
  EXPECT_EQ(Status().state(), JOB_FAILED);
  EXPECT_THAT(Asked(4), IsEmpty());
  EXPECT_THAT(Warning(), HasSubstr("they come here by themselves, but daemon n0 is not connected"));
  Join(500, 8);
  EXPECT_THAT(Asked(500), ElementsAre(10));
  jobs_.OnCheckpoint("bible-1", 10, At(501));
  EXPECT_EQ(Status().state(), JOB_PAUSED) << "it has a checkpoint to go on from";
  EXPECT_THAT(Status().reason(), HasSubstr("its last checkpoint is of step 10"));
}

TEST_F(KeptCheckpointTest, TheLastOneFinishesTheJob) {
  StepsUntil(100);
  jobs_.OnCheckpoint("bible-1", 90, At(3));
  Tell(SessionEvent::FAILED, 1, 100);
  EXPECT_EQ(Status().state(), JOB_PAUSED);
  Join(5, 1);
  jobs_.OnKept("n0", Kept({100}));
  EXPECT_THAT(Asked(5), ElementsAre(100));
  jobs_.OnCheckpoint("bible-1", 100, At(6));
  EXPECT_EQ(Status().state(), JOB_FINISHED);
  EXPECT_THAT(Status().reason(),
              testing::StartsWith("all 100 steps are done (though at the end: stage 0 on daemon n0 "
                                  "failed at step 100"));
}

// A resume that waits for daemons goes on from what they bring, unless the user named a step.
TEST_F(KeptCheckpointTest, AJobThatWaitsTakesIt) {
  StepsUntil(35);
  jobs_.OnCheckpoint("bible-1", 20, At(3));
  Tell(SessionEvent::FAILED, 1, 35);
  ASSERT_TRUE(jobs_.SetWaiting("bible-1", MakePlan(1).job(), std::nullopt, false).ok());
  Join(5, 1);
  jobs_.OnKept("n0", Kept({30}));
  jobs_.LookAtKept("bible-1");
  EXPECT_EQ(jobs_.Find("bible-1")->kept_step, 30) << "at once: it must not start without it";
  EXPECT_THAT(jobs_.KeptSteps(*jobs_.Find("bible-1")), ElementsAre(30));
  EXPECT_THAT(Asked(5), ElementsAre(30));
  jobs_.OnCheckpoint("bible-1", 30, At(6));
  EXPECT_EQ(Status().checkpoint_step(), 30);
  EXPECT_EQ(Status().state(), JOB_PENDING);
  EXPECT_EQ(jobs_.Find("bible-1")->kept_step, -1);
  jobs_.OnCheckpoint("bible-1", 100, At(7));
  EXPECT_EQ(Status().state(), JOB_FINISHED) << "nothing is left to do";
}

TEST_F(KeptCheckpointTest, AJobThatWaitsForAStepThatWasAskedForDoesNot) {
  StepsUntil(35);
  jobs_.OnCheckpoint("bible-1", 20, At(3));
  Tell(SessionEvent::FAILED, 1, 35);
  ASSERT_TRUE(jobs_.SetWaiting("bible-1", MakePlan(1).job(), 10, false).ok());
  Join(5, 1);
  jobs_.OnKept("n0", Kept({30}));
  EXPECT_THAT(Asked(5), IsEmpty());
  jobs_.OnCheckpoint("bible-1", 30, At(6));  // its parts were on their way
  EXPECT_EQ(Status().checkpoint_step(), 10);
  EXPECT_THAT(Status().warnings(), IsEmpty());
}

TEST_F(KeptCheckpointTest, ThoseOfAnotherGenerationAreNotAskedFor) {
  StepsUntil(12);
  Tell(SessionEvent::FAILED, 1, 12);
  Run(2);
  Tell(SessionEvent::FAILED, 2, 0);
  Join(5, 1);
  jobs_.OnKept("n0", Kept({10}));
  EXPECT_THAT(Asked(5), IsEmpty());
  EXPECT_THAT(Status().warnings(), IsEmpty());
}

// Only of a job that was removed: one that is not known may be of a database that is new.
TEST_F(KeptCheckpointTest, GoesWithItsJob) {
  Tell(SessionEvent::FAILED);
  Join(5, 1);
  KeptParts all = Kept({10});
  *all.add_parts() = all.parts(0);
  all.mutable_parts(1)->set_job_id("unknown-5");
  jobs_.OnKept("n0", all);
  const auto told = [&](JobTable* jobs, double s) {
    std::vector<std::string> removed;
    for (const Command& c : jobs->Tick(members_, At(s))) {
      if (!c.message.removed_job().empty()) removed.push_back(c.message.removed_job());
    }
    return removed;
  };
  EXPECT_THAT(told(&jobs_, 5), IsEmpty());
  ASSERT_TRUE(jobs_.BeginRemove("bible-1").ok());
  EXPECT_THAT(told(&jobs_, 5), IsEmpty()) << "not yet";
  jobs_.EndRemove("bible-1", true);
  EXPECT_THAT(told(&jobs_, 6), ElementsAre("bible-1"));
  EXPECT_THAT(told(&jobs_, 7), IsEmpty());
  JobTable after;  // a restart
  after.RestoreRemoved({"bible-1"});
  isthmus::Register hello;
  hello.mutable_node()->set_id("n0");
  *hello.mutable_kept() = all;
  after.OnRegistered("n0", hello, false, At(8));
  EXPECT_THAT(told(&after, 8), ElementsAre("bible-1"));
}

// A coordinator that was killed lost records; a checkpoint tells how far the job was all the same.
TEST_F(JobCheckpointsTest, AStoredOneSaysHowFarTheJobIs) {
  StepsUntil(12);
  jobs_.OnCheckpoint("bible-1", 20, At(3));
  EXPECT_EQ(Status().step(), 20);
  Tell(SessionEvent::FAILED, 1, 25);
  EXPECT_FALSE(jobs_.Find("bible-1")->active());
  jobs_.OnCheckpoint("bible-1", 30, At(4));
  EXPECT_EQ(Status().step(), 30);
}

TEST_F(JobCheckpointsTest, AsManyRemovedJobsAreRememberedAsTheLimitSays) {
  std::vector<std::string> ids;
  for (int i = 0; i <= kMaxRemoved; ++i) ids.push_back("job-" + std::to_string(i));
  jobs_.RestoreRemoved(ids);
  jobs_.RestoreRemoved({ids[5]});
  KeptParts all;
  for (const std::string& id : {ids[0], ids[1], ids[kMaxRemoved]}) all.add_parts()->set_job_id(id);
  jobs_.OnKept("n0", all);
  EXPECT_EQ(jobs_.Tick(Membership(), At(5)).size(), 2u) << "the oldest one is forgotten";
}

TEST_F(JobCheckpointsTest, OnlyAJobThatHasEndedIsRemoved) {
  StepsUntil(3);
  const absl::Status refused = jobs_.BeginRemove("bible-1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("job bible-1 is running: stop it first (isthmus stop bible-1)"));
  ASSERT_TRUE(jobs_.Stop("bible-1", false, At(2)).ok());
  EXPECT_EQ(jobs_.BeginRemove("bible-1").code(), absl::StatusCode::kUnavailable)
      << "that ends by itself";
  EXPECT_EQ(jobs_.BeginRemove("none").code(), absl::StatusCode::kNotFound);
  Tell(SessionEvent::FAILED);
  ASSERT_TRUE(jobs_.BeginRemove("bible-1").ok());
  EXPECT_FALSE(jobs_.BeginRemove("bible-1").ok()) << "by somebody else";
  EXPECT_FALSE(jobs_.Start("bible-1", MakePlan(2), At(5)).ok()) << "its files may be gone";
  EXPECT_FALSE(jobs_.SetWaiting("bible-1", MakePlan(1).job(), std::nullopt, false).ok());
  jobs_.EndRemove("bible-1", false);
  ASSERT_TRUE(jobs_.Start("bible-1", MakePlan(2), At(5)).ok()) << "it stayed";
  Tell(SessionEvent::FAILED, 2);
  jobs_.TakeDirty();
  ASSERT_TRUE(jobs_.BeginRemove("bible-1").ok());
  jobs_.EndRemove("bible-1", true);
  EXPECT_EQ(jobs_.Find("bible-1"), nullptr);
  const JobTable::Dirty dirty = jobs_.TakeDirty();
  EXPECT_THAT(dirty.forgotten, ElementsAre("bible-1"));
  EXPECT_THAT(dirty.changed, IsEmpty());
  EXPECT_THAT(jobs_.TakeRecords(), IsEmpty()) << "they would come back to the store";
  EXPECT_TRUE(jobs_.Add("bible-2", 2, MakePlan(1).job(), false, 78).ok()) << "the name is free";
}

}  // namespace
}  // namespace isthmus::coordinator
