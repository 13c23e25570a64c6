// How a generation ends: checkpoints on a slow path, daemons that are told to end, what is lost.
#include "base/utf8.h"
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kStages = 2;
constexpr char kJob[] = "bible-1";

class JobsEndTest : public ::testing::Test {
 protected:
  JobsEndTest() {
    JobSpec spec = MakeJob();
    spec.mutable_recipe()->set_steps(100);
    plan_.set_job_id(kJob);
    plan_.set_generation(1);
    *plan_.mutable_job() = spec;
    for (int s = 0; s < kStages; ++s) {
      RankPlan* stage = plan_.add_ranks();
      stage->set_stage(s);
      stage->set_node_id(absl::StrCat("n", s));
      stage->set_node_name(absl::StrCat("name", s));
      isthmus::Register request;
      *request.mutable_node() = MakeNode(stage->node_name(), 10);
      request.mutable_node()->set_id(stage->node_id());
      members_.Register(request, s + 1, At(0), At(0));
    }
    Deadlines* d = plan_.mutable_deadlines();
    d->set_open_ms(10000);
    d->set_first_step_ms(40000);
    d->set_step_ms(20000);
    d->set_drain_ms(30000);
    d->set_checkpoint_ms(60000);
    EXPECT_TRUE(jobs_.Add(kJob, 1, spec, false, 77).ok());
    EXPECT_TRUE(jobs_.Start(kJob, plan_, At(0)).ok());
  }

  static absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  Commands Tell(int stage, SessionEvent::State state, double s, int64_t step = 0) {
    SessionEvent e;
    e.set_job_id(kJob);
    e.set_generation(1);
    e.set_rank(stage);
    e.set_state(state);
    e.set_step(step);
    e.set_message("the coordinator did not take checkpoint 100");
    return jobs_.OnEvent(absl::StrCat("n", stage), e, At(s));
  }
  void Record(int step) {
    for (int s = 0; s < kStages; ++s) {
      StepRecord r;
      r.set_job_id(kJob);
      r.set_generation(1);
      r.set_step(step);
      r.set_rank(s);
      r.set_has_loss(s + 1 == kStages);
      EXPECT_TRUE(jobs_.OnStep(absl::StrCat("n", s), r, At(2), 0).ok());
    }
  }
  void Run(int steps = 0, int64_t checkpoint = -1) {
    for (int s = 0; s < kStages; ++s) Tell(s, SessionEvent::PREPARED, 1);
    for (int step = 0; step < steps; ++step) Record(step);
    if (checkpoint >= 0) jobs_.OnCheckpoint(kJob, checkpoint, At(2));
    ASSERT_EQ(State(), JOB_RUNNING);
  }
  void Beat(int stage, double s, int64_t checkpoint_bytes, int64_t progress = 5,
            uint64_t generation = 1) {
    Heartbeat beat;
    beat.set_generation(generation);
    beat.set_progress(progress);
    beat.set_checkpoint_bytes(checkpoint_bytes);
    EXPECT_TRUE(members_.OnHeartbeat(absl::StrCat("n", stage), stage + 1, beat, At(s)).ok());
  }
  Commands Leave(int stage, double s) {
    Leaving leaving;
    leaving.set_grace_ms(6000);
    leaving.set_reason("SIGTERM");
    return jobs_.OnLeaving(absl::StrCat("n", stage), leaving, At(s));
  }
  // Its session is over, and it keeps its part of checkpoints `kept` on its disk.
  void TellOfDisk(int stage, double s, const std::vector<int64_t>& kept = {}) {
    Keep(stage, kept);
    Beat(stage, s, 0, 5, 0);
    jobs_.Tick(members_, At(s));
  }
  void Keep(int stage, const std::vector<int64_t>& kept) {
    KeptParts all;
    for (int64_t step : kept) {
      KeptPart& part = *all.add_parts();
      part.set_job_id(kJob);
      part.set_step(step);
      part.set_generation(1);
      part.set_stage(stage);
      part.set_stages(kStages);
    }
    jobs_.OnKept(absl::StrCat("n", stage), all);
  }
  JobState State() { return jobs_.Find(kJob)->status.state(); }
  std::string Reason() { return jobs_.Find(kJob)->status.reason(); }

  Plan plan_;
  JobTable jobs_;
  Membership members_;
};

// It had said "at once", which nobody had asked for.
TEST_F(JobsEndTest, AStopWhileItStartsSaysSo) {
  ASSERT_EQ(State(), JOB_STARTING);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(1)).ok());
  EXPECT_THAT(Reason(), HasSubstr("stopped by the user while it was starting"));
}

// Checkpoint 100 of 100 was whole, and 0.4 s later the job was paused.
TEST_F(JobsEndTest, AJobWhoseLastCheckpointIsWholeIsFinishedWhateverItsDaemonsSay) {
  Run(100, 100);
  Tell(0, SessionEvent::FAILED, 3, 100);
  EXPECT_EQ(State(), JOB_FINISHED);
  EXPECT_THAT(Reason(), AllOf(StartsWith("all 100 steps are done"),
                              HasSubstr("did not take checkpoint 100")));
}

TEST_F(JobsEndTest, AStopThatLostNothingIsAStop) {
  Run(42);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(3)).ok());
  jobs_.OnCheckpoint(kJob, 43, At(4));
  Tell(1, SessionEvent::FAILED, 5, 43);
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_THAT(Reason(), AllOf(StartsWith("stopped by the user"), HasSubstr("is of step 43: "),
                              Not(HasSubstr("not in good order"))));
}

TEST_F(JobsEndTest, WhatIsLostIsSaid) {
  Run(42, 30);
  Tell(0, SessionEvent::FAILED, 3, 42);
  EXPECT_EQ(State(), JOB_PAUSED);
  TellOfDisk(0, 4);
  EXPECT_THAT(Reason(), HasSubstr("is of step 30 (the 12 steps after it are lost)"))
      << "whatever the other one keeps";
}

// The reason went on counting the steps that were known when the job ended.
TEST_F(JobsEndTest, RecordsThatComeAfterTheEndAreCounted) {
  Run(42, 30);
  Tell(0, SessionEvent::FAILED, 3, 42);
  TellOfDisk(0, 4);
  ASSERT_THAT(Reason(), HasSubstr("(the 12 steps after it are lost)"));
  Record(42);
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), HasSubstr("(the 13 steps after it are lost)"));
  EXPECT_THAT(Reason(), HasSubstr("failed at step 42"));
}

// What was learnt was called lost while daemons that had it on their disks were still silent.
TEST_F(JobsEndTest, NothingIsCalledLostBeforeTheDisksAreKnown) {
  Run(42, 30);
  Tell(0, SessionEvent::FAILED, 3, 42);
  EXPECT_THAT(Reason(), HasSubstr("failed at step 42"));
  EXPECT_THAT(Reason(), EndsWith("; its last stored checkpoint is of step 30, but a newer one may "
                                 "lie on the disks of name0 and name1, which have not told yet: "
                                 "submit --resume goes on from the newest"));
  Beat(0, 4, 0);
  jobs_.Tick(members_, At(4));
  EXPECT_THAT(Reason(), HasSubstr("of name0 and name1, which have not"))
      << "its session still ends";
  TellOfDisk(0, 5, {30, 40});
  EXPECT_THAT(Reason(), HasSubstr("may lie on the disk of name1, which has not told yet"));
  TellOfDisk(1, 6, {30, 40});
  EXPECT_THAT(Reason(), HasSubstr("failed at step 42"));
  EXPECT_THAT(Reason(), EndsWith("; checkpoint 40 lies on the disks of its daemons (the 2 steps "
                                 "after it are lost): submit --resume goes on from there"));
  jobs_.OnCheckpoint(kJob, 40, At(7));
  EXPECT_THAT(Reason(), EndsWith("; its last checkpoint is of step 40 (the 2 steps after it are "
                                 "lost): submit --resume goes on from there"));
}

// Steps may be shorter than the time between heartbeats: the last one was older than the session.
TEST_F(JobsEndTest, AHeartbeatFromBeforeTheSessionTellsNothingOfItsDisk) {
  for (int stage = 0; stage < kStages; ++stage) Beat(stage, 1, 0, 5, 0);
  Run(42, 30);
  Tell(0, SessionEvent::FAILED, 3, 42);
  jobs_.Tick(members_, At(3));
  EXPECT_THAT(Reason(), HasSubstr("may lie on the disks of name0 and name1, which have not told"));
  members_.OnStreamGone("n1", 2, At(4));
  TellOfDisk(0, 5, {30, 40});
  EXPECT_THAT(Reason(), HasSubstr("may lie on the disk of name1, which has not told yet"));
}

// What a daemon told before it was killed may be old: it kept a later one since.
TEST_F(JobsEndTest, OneThatIsKeptMayNotBeTheNewest) {
  Run(42, 10);
  for (int stage = 0; stage < kStages; ++stage) Keep(stage, {20});
  Tell(0, SessionEvent::FAILED, 3, 42);
  TellOfDisk(0, 4, {20, 30});
  EXPECT_THAT(Reason(),
              EndsWith("; checkpoint 20 lies on the disks of its daemons, and a newer one "
                       "may lie on the disk of name1, which has not told yet: submit "
                       "--resume goes on from the newest"));
  TellOfDisk(0, 5, {20});
  EXPECT_THAT(Reason(), HasSubstr("checkpoint 20 lies on the disks of its daemons (the 22 steps "
                                  "after it are lost)"))
      << "whatever the other one keeps";
}

TEST_F(JobsEndTest, WhatIsKnownToBeLostStaysSo) {
  Run(42, 30);
  Tell(0, SessionEvent::FAILED, 3, 42);
  TellOfDisk(1, 4, {30});
  const std::string known = Reason();
  EXPECT_THAT(known, HasSubstr("(the 12 steps after it are lost)"));
  members_.OnStreamGone("n1", 2, At(5));
  jobs_.Tick(members_, At(6));
  EXPECT_EQ(Reason(), known);
}

TEST_F(JobsEndTest, ADaemonThatIsForgottenIsNotWaitedFor) {
  Run(42);
  Tell(0, SessionEvent::FAILED, 3, 42);
  EXPECT_THAT(Reason(), HasSubstr("no checkpoint is stored yet, but one may lie on the disks of"));
  jobs_.Tick(Membership(), At(5));
  EXPECT_THAT(Reason(), HasSubstr("no checkpoint yet, what the 42 steps learnt is lost"));
}

// A coordinator that starts again knows neither what daemons keep nor what it said of it.
TEST_F(JobsEndTest, AfterARestartTheReasonGoesOnFromWhatWasKnown) {
  Run(42, 30);
  Tell(0, SessionEvent::FAILED, 3, 42);
  // With the checkpoint that the files have by then.
  const auto restarted = [&](int64_t stored) {
    const Job& job = *jobs_.Find(kJob);
    Job kept;
    kept.id = job.id;
    kept.spec = job.spec;
    kept.plan = job.plan;
    kept.status = job.status;
    kept.because = job.because;
    JobTable after;
    after.Restore(kept, stored, 42, At(0));
    after.Tick(members_, At(0));
    return after.Find(kJob)->status;
  };
  EXPECT_THAT(restarted(30).reason(), HasSubstr("of name0 and name1, which have not told yet"));
  TellOfDisk(0, 4);
  const std::string known = Reason();
  EXPECT_THAT(known, HasSubstr("(the 12 steps after it are lost)"));
  members_.OnStreamGone("n0", 1, At(5));
  EXPECT_EQ(restarted(30).reason(), known);
  EXPECT_THAT(restarted(40).reason(),
              AllOf(HasSubstr("failed at step 42"), HasSubstr("is of step 40 (the 2")));
  EXPECT_THAT(restarted(20).reason(), HasSubstr("is of step 20 (the 22")) << "others were removed";
}

// The end of a long reason was cut off: how to go on.
TEST_F(JobsEndTest, ALongCauseIsCutAndNeverWhatIsStored) {
  for (RankPlan& rank : *plan_.mutable_ranks()) {
    rank.set_node_name(std::string(kMaxReasonBytes, 'n'));
    for (size_t i = 1; i < rank.node_name().size(); i += 2)
      rank.mutable_node_name()->replace(i - 1, 2, "\xc3\xa9");
  }
  plan_.set_generation(2);
  ASSERT_TRUE(jobs_.Stop(kJob, true, At(0)).ok());
  ASSERT_TRUE(jobs_.Start(kJob, plan_, At(0)).ok());
  const auto fail = [&] {
    SessionEvent e;
    e.set_job_id(kJob);
    e.set_generation(2);
    e.set_state(SessionEvent::FAILED);
    e.set_message("x");
    jobs_.OnEvent("n0", e, At(3));
  };
  fail();
  EXPECT_GT(Reason().size(), kMaxReasonBytes - 4) << "as much as there is room for";
  EXPECT_LE(Reason().size(), kMaxReasonBytes);
  EXPECT_TRUE(IsUtf8(Reason()));
  EXPECT_THAT(Reason(),
              EndsWith("...; there is no checkpoint yet: submit --resume starts at step 0"));
  jobs_.OnStreamGone("n1", At(4));
  EXPECT_THAT(Reason(), StartsWith("daemon "));
  EXPECT_THAT(Reason(), EndsWith(": submit --resume starts at step 0"));
  jobs_.OnCheckpoint(kJob, 5, At(5));
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), EndsWith("...; its last checkpoint is of step 5: submit --resume goes on "
                                 "from there"));
  jobs_.OnCheckpoint(kJob, 100, At(6));
  EXPECT_EQ(State(), JOB_FINISHED);
  EXPECT_THAT(Reason(), AllOf(StartsWith("all 100 steps are done (though at the end: daemon "),
                              EndsWith("...)")));
  EXPECT_LE(Reason().size(), kMaxReasonBytes);
}

TEST_F(JobsEndTest, MomentsThatFallTogetherAreSaidSo) {
  Run(42, 40);
  jobs_.OnStreamGone("n1", At(3));
  Tell(0, SessionEvent::FAILED, 3.04, 42);
  EXPECT_THAT(Reason(), StartsWith("daemon name1 is lost (its connection ended within a second of "
                                   "this); "
                                   "stage 0 on daemon name0 failed"));
  jobs_.OnStreamGone("n0", At(3.05));
  EXPECT_THAT(Reason(), Not(HasSubstr("0 s"))) << "0 s after, 0 s before this";
}

// The upload of the last checkpoint takes minutes: bytes are progress.
TEST_F(JobsEndTest, BytesOfTheLastCheckpointKeepAJobAlive) {
  Run(100, 90);
  for (int s = 0; s < 600; s += 10) {
    for (int stage = 0; stage < kStages; ++stage) Beat(stage, s, 1000 * s);
    EXPECT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s;
  }
  EXPECT_EQ(State(), JOB_RUNNING);
  for (int stage = 0; stage < kStages; ++stage) Beat(stage, 715, 590000);
  EXPECT_THAT(jobs_.Tick(members_, At(715)), SizeIs(kStages)) << "120 s without a byte";
  EXPECT_THAT(Reason(), HasSubstr("no progress of stage"));
}

TEST_F(JobsEndTest, AStopWaitsAsLongAsBytesMove) {
  Run(42);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(3)).ok());
  Beat(0, 80, 100);
  Beat(1, 80, 100);
  EXPECT_THAT(jobs_.Tick(members_, At(85)), IsEmpty());
  Beat(1, 130, 200);
  EXPECT_THAT(jobs_.Tick(members_, At(150)), IsEmpty()) << "stage 1 moves";
  EXPECT_THAT(jobs_.Tick(members_, At(191)), SizeIs(kStages));
  EXPECT_THAT(Reason(), HasSubstr("did not finish in time"));
}

TEST_F(JobsEndTest, AResumeMayFetchForLong) {
  Tell(0, SessionEvent::PREPARED, 1);
  Beat(0, 2, 0);
  for (int s = 10; s < 500; s += 20) {
    Beat(1, s, 1000 * s);
    EXPECT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s;
  }
  Beat(0, 500, 0, 77);
  EXPECT_THAT(jobs_.Tick(members_, At(555)), SizeIs(kStages))
      << "who is ready already does not count";
  EXPECT_THAT(Reason(), HasSubstr("not ready in time: stage 1"));
}

TEST_F(JobsEndTest, ADaemonOfAnotherGenerationDoesNotMove) {
  Beat(0, 39, 1, 1, 7);
  Beat(1, 39, 1, 1, 7);
  EXPECT_THAT(jobs_.Tick(members_, At(40)), SizeIs(kStages));
}

TEST_F(JobsEndTest, ADaemonThatLeavesPausesTheJobInGoodOrder) {
  Run(42, 30);
  const Commands out = Leave(1, 3);
  ASSERT_THAT(out, SizeIs(kStages));
  EXPECT_TRUE(out[0].message.stop().graceful());
  EXPECT_THAT(out[0].message.stop().reason(), HasSubstr("daemon name1 left (SIGTERM)"));
  EXPECT_EQ(State(), JOB_STOPPING);
  EXPECT_THAT(Reason(), HasSubstr("which ends in 6 s at the latest"));
  EXPECT_THAT(Leave(1, 3.5), IsEmpty());
  jobs_.OnCheckpoint(kJob, 43, At(4));
  Tell(1, SessionEvent::FINISHED, 4, 43);
  jobs_.OnStreamGone("n1", At(4.1));
  EXPECT_EQ(State(), JOB_STOPPING) << "the other one has still to end";
  Tell(0, SessionEvent::FINISHED, 4.2, 43);
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), AllOf(StartsWith("daemon name1 left (SIGTERM)"),
                              HasSubstr("ended in good order after step 43"),
                              HasSubstr("is of step 43: "), Not(HasSubstr("lost"))));
}

TEST_F(JobsEndTest, ACheckpointThatDoesNotFitTheGraceIsSaidWithTheStepsLost) {
  Run(42, 30);
  Leave(1, 3);
  EXPECT_THAT(jobs_.OnStreamGone("n1", At(9)), SizeIs(1));
  EXPECT_EQ(State(), JOB_PAUSED);
  TellOfDisk(0, 9.5);
  EXPECT_THAT(Reason(), AllOf(StartsWith("daemon name1 left (SIGTERM)"),
                              HasSubstr("(the 12 steps after it are lost)")));
  jobs_.OnStreamGone("n0", At(10));
  EXPECT_THAT(Reason(), StartsWith("daemon name"));
}

TEST_F(JobsEndTest, ADaemonThatLeavesBeforeTheFirstCheckpointPausesTheJobToo) {
  Run(42);
  Leave(0, 3);
  Tell(0, SessionEvent::FAILED, 9, 42);
  EXPECT_EQ(State(), JOB_PAUSED);
  TellOfDisk(1, 10);
  EXPECT_THAT(Reason(), AllOf(StartsWith("daemon name0 left (SIGTERM)"),
                              HasSubstr("no checkpoint yet, what the 42 steps learnt is lost")));
}

TEST_F(JobsEndTest, ADaemonThatLeavesWhileTheJobStarts) {
  EXPECT_THAT(Leave(0, 1), SizeIs(kStages));
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), HasSubstr("it had not started"));
}

TEST_F(JobsEndTest, TheNextGenerationKnowsNothingOfWhoLeft) {
  Run(42, 30);
  Leave(1, 3);
  jobs_.OnStreamGone("n1", At(9));
  plan_.set_generation(2);
  plan_.set_start_step(30);
  ASSERT_TRUE(jobs_.Start(kJob, plan_, At(20)).ok());
  ASSERT_TRUE(jobs_.Stop(kJob, true, At(21)).ok());
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_THAT(Reason(), Not(HasSubstr("left")));
}

// It said that the step is finished, while a round of local steps was waited for, or two of them.
TEST_F(JobsEndTest, AStopSaysWhatItWaitsFor) {
  EXPECT_EQ(StopWords(plan_), "the step is finished and a checkpoint written");
  plan_.add_replicas();
  plan_.add_replicas();
  StrategySpec* s = plan_.mutable_job()->mutable_strategy();
  s->set_local_steps(50);
  EXPECT_EQ(StopWords(plan_), "the round of 50 steps is finished and a checkpoint written");
  s->set_fragments(2);
  EXPECT_EQ(StopWords(plan_),
            "the round of 50 steps, or the next one, is finished and a checkpoint written");
  s->set_fragments(1);
  plan_.mutable_deal()->add_shares(1);
  EXPECT_EQ(
      StopWords(plan_),
      "the model comes together at the end of the next round of 50 steps, two rounds from here "
      "at most, and a checkpoint is written");
  Run(3);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(5)).ok());
  EXPECT_EQ(jobs_.Find(kJob)->status.reason(),
            "the user asked to stop: the step is finished and a checkpoint written");
}

TEST_F(JobsEndTest, AgesAreNoNews) {
  EXPECT_EQ(WithoutAges("n1 is lost, last heard 3.5 s ago; n2 left in good order 41 s ago; x"),
            "n1 is lost, last heard ; n2 left in good order ; x");
  EXPECT_EQ(WithoutAges("step 12: 3 s"), "step 12: 3 s");
}

}  // namespace
}  // namespace isthmus::coordinator
