// When a job of which little is heard counts as lost, and when it goes on.
#include "coordinator/core/jobs.h"
#include "coordinator/core/membership.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kStages = 3;
constexpr char kBroken[] = "link b1 to name1 broke (keepalive watchdog timeout): dialling again";

class LivenessTest : public ::testing::Test {
 protected:
  void SetUp() override { Run(kStages); }

  absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  std::string Node(int stage) { return "n" + std::to_string(stage); }
  isthmus::Register Hello(int stage, uint64_t generation) {
    isthmus::Register r;
    r.mutable_node()->set_id(Node(stage));
    r.mutable_node()->set_name("name" + std::to_string(stage));
    r.mutable_node()->set_address(Node(stage) + ":1");
    r.set_instance("p");
    r.set_running_generation(generation);
    r.set_running_job_id("bible-1");
    return r;
  }

  void Run(int stages) {
    JobSpec spec;
    spec.set_name("bible");
    spec.mutable_recipe()->set_steps(100);
    ASSERT_TRUE(jobs_.Add("bible-1", 1, spec, false, 0).ok());
    Plan plan;
    plan.set_job_id("bible-1");
    plan.set_generation(1);
    *plan.mutable_job() = spec;
    for (int s = 0; s < stages; ++s) {
      RankPlan* stage = plan.add_ranks();
      stage->set_stage(s);
      stage->set_node_id(Node(s));
      stage->set_node_name("name" + std::to_string(s));
      if (s > 0) {
        LinkPlan* link = plan.add_links();
        link->set_lower(s - 1);
        link->set_upper(s);
      }
      Join(s, 0, 0);
    }
    plan.mutable_deadlines()->set_step_ms(40000);
    plan.mutable_deadlines()->set_drain_ms(50000);
    plan_ = plan;
    ASSERT_TRUE(jobs_.Start("bible-1", plan, At(0)).ok());
    for (int s = 0; s < stages; ++s) Tell(s, SessionEvent::PREPARED, 1);
    ASSERT_EQ(State(), JOB_RUNNING);
  }
  void Join(int stage, uint64_t generation, double s) {
    streams_[stage] = ++last_stream_;
    ASSERT_EQ(members_.Register(Hello(stage, generation), last_stream_, At(s), At(s)).kind,
              RegisterDecision::kAccepted);
  }
  Commands Tell(int stage, SessionEvent::State state, double s) {
    SessionEvent e;
    e.set_job_id("bible-1");
    e.set_generation(1);
    e.set_rank(stage);
    e.set_state(state);
    return jobs_.OnEvent(Node(stage), e, At(s));
  }
  // Without words: it goes on. Without `peer`: by an older daemon.
  Commands TellOfLink(int stage, const std::string& words, double s, int peer = -1) {
    SessionEvent event;
    event.set_job_id("bible-1");
    event.set_generation(1);
    event.set_rank(stage);
    event.set_state(SessionEvent::RUNNING);
    event.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
    event.set_message(words);
    if (peer >= 0) event.mutable_cause()->set_node(Node(peer));
    return jobs_.OnEvent(Node(stage), event, At(s));
  }
  void Beat(int stage, double s, int64_t progress, uint64_t generation = 1) {
    Heartbeat h;
    h.set_generation(generation);
    h.set_progress(progress);
    ASSERT_TRUE(members_.OnHeartbeat(Node(stage), streams_[stage], h, At(s)).ok());
  }
  void Cut(int stage, double s) {
    members_.OnStreamGone(Node(stage), streams_[stage], At(s));
    jobs_.OnStreamGone(Node(stage), At(s));
  }
  Commands Back(int stage, uint64_t generation, double s, bool restarted = false) {
    Join(stage, generation, s);
    return jobs_.OnRegistered(Node(stage), Hello(stage, generation), restarted, At(s));
  }
  // Seconds of heartbeats with progress of these stages, ticking.
  void TrainOn(const std::vector<int>& stages, int from, int to) {
    for (int s = from; s <= to; ++s) {
      for (int stage : stages) Beat(stage, s, s);
      ASSERT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s << ": " << Reason();
    }
  }
  // The same without progress.
  void StandStill(const std::vector<int>& stages, int from, int to) {
    for (int s = from; s <= to; ++s) {
      for (int stage : stages) Beat(stage, s, 10);
      ASSERT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s << ": " << Reason();
    }
  }
  // As generation 2, every rank a replica of one stage.
  void RunAsReplicas() {
    Tell(0, SessionEvent::FAILED, 2);
    plan_.set_generation(2);
    for (int r = 0; r < plan_.ranks_size(); ++r) {
      plan_.add_replicas()->set_samples(1);
      plan_.mutable_ranks(r)->set_stage(0);
      plan_.mutable_ranks(r)->set_replica(r);
    }
    ASSERT_TRUE(jobs_.Start("bible-1", plan_, At(3)).ok());
  }
  JobState State() { return jobs_.Find("bible-1")->status.state(); }
  std::string Reason() { return jobs_.Find("bible-1")->status.reason(); }
  JobStatus StatusAt(double s) { return jobs_.Status(*jobs_.Find("bible-1"), At(s)); }

  JobTable jobs_;
  Membership members_;
  Plan plan_;
  uint64_t last_stream_ = 0;
  uint64_t streams_[kStages] = {};
};

TEST_F(LivenessTest, ALinkThatIsBeingMendedIsTheReasonWhileItLasts) {
  TellOfLink(1, "link b1 to name2 broke (reset): dialling again", 5);
  EXPECT_EQ(State(), JOB_RUNNING);
  EXPECT_THAT(Reason(), HasSubstr("name1"));
  EXPECT_THAT(Reason(), HasSubstr(": link b1 to name2 broke (reset): dialling again"));
  TellOfLink(0, "", 5.5);
  EXPECT_THAT(Reason(), HasSubstr("link b1 to name2 broke")) << "another one goes on";
  TellOfLink(1, "", 6);
  EXPECT_EQ(State(), JOB_RUNNING);
  EXPECT_EQ(Reason(), "");
}

TEST_F(LivenessTest, TheReasonNamesALinkThatIsStillBroken) {
  TellOfLink(1, "link b0 to name0 broke (reset): dialling again", 5, 0);
  TellOfLink(1, "link b1 to name2 broke (reset): dialling again", 5, 2);
  TellOfLink(1, "", 6, 0);
  EXPECT_THAT(Reason(), HasSubstr("link b1 to name2 broke"));
  TellOfLink(1, "link b0 to name0 broke (reset): dialling again", 7, 0);
  TellOfLink(1, "", 8, 0);
  EXPECT_THAT(Reason(), HasSubstr("link b1 to name2 broke"));
  TellOfLink(1, "", 9, 2);
  EXPECT_EQ(Reason(), "");
}

TEST_F(LivenessTest, AHostThatVanishedIsLostOnceALinkToItStaysBroken) {
  TrainOn({0, 1, 2}, 2, 10);
  StandStill({0, 2}, 11, 20);
  TellOfLink(2, kBroken, 20, 1);
  StandStill({0, 2}, 21, 24);
  jobs_.OnNodeLost("n1", At(10));
  EXPECT_THAT(jobs_.Tick(members_, At(25)), SizeIs(2));
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), StartsWith("daemon name1 is lost: not heard for 15 s, and stage 2 on "
                                   "daemon name2: link b1 to name1 broke"));
  EXPECT_THAT(jobs_.Find("bible-1")->status.cause().lost(), ElementsAre("n1"));
}

TEST_F(LivenessTest, AHostThatWasAwayHasSecondsToDialAgain) {
  TrainOn({0, 1, 2}, 2, 10);
  StandStill({0, 2}, 11, 24);
  jobs_.OnNodeLost("n1", At(10));
  StandStill({0, 2}, 25, 25);
  EXPECT_THAT(TellOfLink(2, kBroken, 25, 1), IsEmpty());
  StandStill({0, 2}, 26, 28);
  TellOfLink(2, "", 28.2, 1);
  StandStill({0, 2}, 29, 29);
  EXPECT_EQ(State(), JOB_RUNNING);
}

TEST_F(LivenessTest, ALinkToAnotherOneThatBrokeDoesNotMakeAHostLost) {
  TrainOn({0, 1, 2}, 2, 10);
  StandStill({0, 1}, 11, 20);
  TellOfLink(1, "link b0 to name0 broke (reset): dialling again", 20, 0);
  jobs_.OnNodeLost("n2", At(10));
  StandStill({0, 1}, 21, 29);
  EXPECT_THAT(jobs_.Tick(members_, At(30)), SizeIs(2)) << "as without it";
}

TEST_F(LivenessTest, ALinkThatBreaksIsNoProgress) {
  TrainOn({0, 1, 2}, 2, 10);
  StandStill({0, 2}, 11, 20);
  TellOfLink(2, kBroken, 20);
  StandStill({0, 2}, 21, 24);
  jobs_.OnNodeLost("n1", At(10));
  StandStill({0, 2}, 25, 29);
  EXPECT_THAT(jobs_.Tick(members_, At(30)), SizeIs(2));
}

// With a peer that still trains, what was not heard for long is mended as well.
TEST_F(LivenessTest, ABlipIsMendedWithADaemonThatTrainsOnUnheard) {
  TrainOn({0, 1, 2}, 2, 10);
  Cut(1, 10);
  TrainOn({0, 2}, 11, 600);
  EXPECT_THAT(TellOfLink(0, "link b0 to name1 broke (reset): dialling again", 601, 1), IsEmpty());
  EXPECT_EQ(State(), JOB_RUNNING);
}

// A long validation pass looked like a hang: the record of its step comes after it.
TEST_F(LivenessTest, AValidationPassIsSaid) {
  plan_.set_generation(2);
  plan_.set_predicted_step_s(1);
  plan_.mutable_job()->mutable_recipe()->set_eval_every(10);
  plan_.mutable_job()->mutable_recipe()->set_eval_samples(58000);
  Tell(0, SessionEvent::FAILED, 2);
  ASSERT_TRUE(jobs_.Start("bible-1", plan_, At(3)).ok());
  for (int rank = 0; rank < kStages; ++rank) {
    SessionEvent e;
    e.set_job_id("bible-1");
    e.set_generation(2);
    e.set_rank(rank);
    jobs_.OnEvent(Node(rank), e, At(4));
  }
  ASSERT_EQ(State(), JOB_RUNNING);
  const auto said = [&](int64_t committed, double s) {
    Heartbeat h;
    h.set_generation(2);
    h.set_progress(static_cast<int64_t>(s));
    h.set_step(committed);
    EXPECT_TRUE(members_.OnHeartbeat(Node(1), streams_[1], h, At(s)).ok());
    jobs_.Tick(members_, At(s));
    return StatusAt(s);
  };
  EXPECT_THAT(said(9, 5).reason(), IsEmpty());
  EXPECT_GT(said(9, 5).eta_s(), 0);
  const JobStatus status = said(10, 6);
  EXPECT_EQ(status.reason(), "a validation pass of up to 58000 samples after step 10");
  EXPECT_EQ(status.eta_s(), 0) << "nobody knows how long it takes";
  StepRecord record;
  record.set_job_id("bible-1");
  record.set_generation(2);
  record.set_step(9);
  for (int rank = 0; rank < kStages; ++rank) {
    record.set_rank(rank);
    record.set_has_loss(rank == kStages - 1);
    ASSERT_TRUE(jobs_.OnStep(Node(rank), record, At(7), 0).ok());
  }
  EXPECT_THAT(said(10, 8).reason(), IsEmpty());
  EXPECT_THAT(said(11, 9).reason(), IsEmpty());
}

TEST_F(LivenessTest, OneDaemonOutOfTouchTrainsOnWithItsPeers) {
  TrainOn({0, 1, 2}, 2, 10);
  Cut(1, 10);
  TrainOn({0, 2}, 11, 600);
  EXPECT_EQ(State(), JOB_RUNNING);
  EXPECT_THAT(StatusAt(600).warnings(),
              ElementsAre(HasSubstr("daemon name1 is silent: nothing was heard of it for")));
  EXPECT_THAT(Back(1, 1, 601), IsEmpty());
  EXPECT_THAT(StatusAt(700).warnings(), IsEmpty());
  TrainOn({0, 1, 2}, 602, 700);
}

TEST_F(LivenessTest, AHostThatVanishedIsLostWhenItsPeersStandStill) {
  TrainOn({0, 1, 2}, 2, 10);
  for (int s = 11; s < 30; ++s) {  // a lease without a word, and they wait for it
    for (int stage : {0, 2}) Beat(stage, s, 10);
    if (s == 25) jobs_.OnNodeLost("n1", At(10));
    EXPECT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s;
  }
  EXPECT_THAT(jobs_.Tick(members_, At(30)), SizeIs(2));
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("daemon name1 is lost: not heard for 20 s, and no daemon of the "
                                  "job has made progress for 20 s; it held stage 1"));
}

TEST_F(LivenessTest, AKilledDaemonIsSeenByItsPeersAtOnce) {
  TrainOn({0, 1, 2}, 2, 10);
  Cut(1, 10);
  EXPECT_THAT(Tell(0, SessionEvent::FAILED, 10.1), Not(IsEmpty()));
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("daemon name1 is lost (its connection ended"));
  EXPECT_THAT(Back(1, 1, 12), SizeIs(1)) << "what a peer has given up is told to stop";
}

TEST_F(LivenessTest, TheCoordinatorsUplinkMayFail) {
  TrainOn({0, 1, 2}, 2, 10);
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  EXPECT_THAT(jobs_.Tick(members_, At(69)), IsEmpty());
  EXPECT_EQ(State(), JOB_RUNNING);
  for (int stage = 0; stage < kStages; ++stage) EXPECT_THAT(Back(stage, 1, 69.5), IsEmpty());
  TrainOn({0, 1, 2}, 70, 200);
}

TEST_F(LivenessTest, SessionsThatTrainedOnForHoursAreNotThrownBack) {
  TrainOn({0, 1, 2}, 2, 10);
  jobs_.OnCheckpoint("bible-1", 5, At(10));
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  EXPECT_THAT(jobs_.Tick(members_, At(70)), SizeIs(kStages));
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(Reason(), HasSubstr("nobody of the job was heard for 60 s: daemon name0 is lost, "
                                  "daemon name1 is lost, daemon name2 is lost"));
  EXPECT_THAT(Back(2, 1, 5000), IsEmpty());
  EXPECT_EQ(State(), JOB_RUNNING);
  EXPECT_EQ(Reason(), "");
  for (int stage : {0, 1}) EXPECT_THAT(Back(stage, 1, 5003), IsEmpty());
  TrainOn({0, 1, 2}, 5004, 5100);
}

// That its sessions may still run is known over a restart of the coordinator.
TEST_F(LivenessTest, SessionsComeBackThoughTheCoordinatorRestartedMeanwhile) {
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  ASSERT_THAT(jobs_.Tick(members_, At(70)), SizeIs(kStages));
  const Job& job = *jobs_.Find("bible-1");
  EXPECT_TRUE(jobs_.Status(job, At(70)).out_of_touch());
  Job stored;  // as the store has it
  stored.id = job.id;
  stored.number = job.number;
  stored.spec = job.spec;
  stored.plan = job.plan;
  stored.status = jobs_.Status(job, At(70));
  JobTable after;
  after.Restore(stored, stored.status.checkpoint_step(), 0, At(0));
  EXPECT_THAT(after.OnRegistered("n2", Hello(2, 1), false, At(5)), IsEmpty());
  EXPECT_EQ(after.Find("bible-1")->status.state(), JOB_RUNNING);
  EXPECT_FALSE(after.Find("bible-1")->status.out_of_touch());
  for (int stage : {0, 1})
    EXPECT_THAT(after.OnRegistered(Node(stage), Hello(stage, 1), false, At(8)), IsEmpty());
}

TEST_F(LivenessTest, AResumeByTheUserEndsWhatComesBackLater) {
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  ASSERT_THAT(jobs_.Tick(members_, At(70)), SizeIs(kStages));
  plan_.set_generation(2);
  ASSERT_TRUE(jobs_.Start("bible-1", plan_, At(80)).ok());
  const Commands out = Back(0, 1, 90);
  ASSERT_THAT(out, SizeIs(1));
  EXPECT_EQ(out[0].message.stop().generation(), 1u);
}

TEST_F(LivenessTest, ANewJobOfThatNameIsNotJoinedByTheOldOne) {
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  ASSERT_THAT(jobs_.Tick(members_, At(70)), SizeIs(kStages));
  ASSERT_TRUE(jobs_.Add("bible-2", 2, plan_.job(), true, 0).ok());
  EXPECT_THAT(Back(0, 1, 90), SizeIs(1));
  EXPECT_EQ(State(), JOB_FAILED);
}

TEST_F(LivenessTest, AJobThatFinishedUnheardIsFinished) {
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  ASSERT_THAT(jobs_.Tick(members_, At(70)), SizeIs(kStages));
  jobs_.OnCheckpoint("bible-1", 100, At(500));  // the last part came through
  EXPECT_EQ(State(), JOB_FINISHED);
}

TEST_F(LivenessTest, ASessionThatEndedUnheardTellsHow) {
  for (int stage = 0; stage < kStages; ++stage) Cut(stage, 10);
  ASSERT_THAT(jobs_.Tick(members_, At(70)), SizeIs(kStages));
  EXPECT_THAT(Back(1, 0, 90), IsEmpty());
  EXPECT_EQ(State(), JOB_RUNNING) << "its words about the session are on the way";
  Tell(1, SessionEvent::FAILED, 90.1);
  EXPECT_EQ(State(), JOB_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("stage 1 on daemon name1 failed"));
}

TEST_F(LivenessTest, TheLastDaemonMayVanishOnceTheLastCheckpointIsWhole) {
  TrainOn({0, 1, 2}, 2, 10);
  Cut(1, 10);
  jobs_.OnCheckpoint("bible-1", 100, At(11));
  for (int stage : {0, 2}) Tell(stage, SessionEvent::FINISHED, 12);
  EXPECT_EQ(State(), JOB_FINISHED);
}

// The others had done their part: nobody told of it, and the job ran for a minute.
TEST_F(LivenessTest, ADaemonThatDiesWhileTheLastCheckpointIsStoredIsMissedAfterALease) {
  TrainOn({0, 1, 2}, 2, 10);
  for (int stage : {0, 2}) Tell(stage, SessionEvent::FINISHED, 10);
  Cut(1, 10);
  for (int s = 11; s < 25; ++s) {
    for (int stage : {0, 2}) Beat(stage, s, 10, 0);
    EXPECT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s;
  }
  EXPECT_EQ(State(), JOB_RUNNING);
  jobs_.Tick(members_, At(25));
  EXPECT_EQ(State(), JOB_FAILED) << "there is no checkpoint";
  EXPECT_THAT(Reason(), StartsWith("daemon name1 is lost: not heard for 15 s, while the last "
                                   "checkpoint was being stored; it held stage 1; "));
  EXPECT_THAT(jobs_.Find("bible-1")->status.cause().lost(), ElementsAre("n1"));
  EXPECT_THAT(Back(1, 1, 40), IsEmpty()) << "its session ran on";
  EXPECT_EQ(State(), JOB_RUNNING);
  jobs_.OnCheckpoint("bible-1", 100, At(41));
  Tell(1, SessionEvent::FINISHED, 41);
  EXPECT_EQ(State(), JOB_FINISHED);
}

TEST_F(LivenessTest, AlsoWhereTheJobWasStopped) {
  TrainOn({0, 1, 2}, 2, 10);
  ASSERT_TRUE(jobs_.Stop("bible-1", false, At(10)).ok());
  Tell(0, SessionEvent::FINISHED, 11);
  for (int stage : {1, 2}) Cut(stage, 10 + stage);
  for (int s = 12; s < 27; ++s) {
    Beat(0, s, 10, 0);
    EXPECT_THAT(jobs_.Tick(members_, At(s)), IsEmpty()) << s;
  }
  jobs_.Tick(members_, At(27));
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_THAT(Reason(), StartsWith("stopped, but not in good order: daemon name1 is lost, daemon "
                                   "name2 is lost: not heard for 15 s, while the last"));
  EXPECT_THAT(Back(1, 1, 40), SizeIs(1)) << "the user wanted it stopped";
  EXPECT_EQ(State(), JOB_STOPPED);
}

TEST_F(LivenessTest, WhereNobodyIsHeardItMayBeTheCoordinatorsUplinkStill) {
  TrainOn({0, 1, 2}, 2, 10);
  for (int stage : {0, 2}) Tell(stage, SessionEvent::FINISHED, 10);
  for (int stage : {0, 1, 2}) Cut(stage, 10);
  EXPECT_THAT(jobs_.Tick(members_, At(69)), IsEmpty());
  EXPECT_EQ(State(), JOB_RUNNING);
  jobs_.Tick(members_, At(70));
  EXPECT_THAT(Reason(), HasSubstr("nobody of the job was heard for 60 s: daemon name1 is lost."));
}

TEST_F(LivenessTest, WhileItStartsALostDaemonIsMissedAfterALease) {
  Tell(0, SessionEvent::FAILED, 2);
  plan_.set_generation(2);
  ASSERT_TRUE(jobs_.Start("bible-1", plan_, At(3)).ok());
  Cut(2, 4);
  EXPECT_THAT(jobs_.Tick(members_, At(18)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(19)), SizeIs(2));
  EXPECT_THAT(Reason(), HasSubstr("daemon name2 is lost: not heard for 15 s; it held stage 2"));
}

TEST_F(LivenessTest, ALostDaemonsStageIsNamedWithItsReplica) {
  RunAsReplicas();
  Cut(2, 4);
  jobs_.Tick(members_, At(19));
  EXPECT_THAT(Reason(), HasSubstr("it held stage 0 of replica 2"));
}

// It was "stage 2", of which there is none.
TEST_F(LivenessTest, AGoneSessionsStageIsNamedWithItsReplica) {
  RunAsReplicas();
  Back(2, 0, 5, true);
  EXPECT_THAT(Reason(), HasSubstr("its session (stage 0 of replica 2) is gone"));
}

TEST_F(LivenessTest, APauseOfTheCoordinatorCountsForNobody) {
  TrainOn({0, 1, 2}, 2, 10);
  Cut(1, 10);
  for (double s = 10; s < 20; s += 1) Beat(0, s, 10);
  members_.Forgive(absl::Seconds(300), At(320));
  jobs_.Forgive(absl::Seconds(300));
  EXPECT_THAT(jobs_.Tick(members_, At(320)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(329)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(331)), SizeIs(2)) << "the time before and after does";
}

TEST_F(LivenessTest, APauseMovesTheDeadlineOfAStart) {
  Tell(0, SessionEvent::FAILED, 2);
  plan_.set_generation(2);
  ASSERT_TRUE(jobs_.Start("bible-1", plan_, At(3)).ok());  // ready within 30 s
  jobs_.Forgive(absl::Seconds(300));
  EXPECT_THAT(jobs_.Tick(members_, At(332)), IsEmpty());
  EXPECT_THAT(jobs_.Tick(members_, At(333)), SizeIs(kStages));
}

}  // namespace
}  // namespace isthmus::coordinator
