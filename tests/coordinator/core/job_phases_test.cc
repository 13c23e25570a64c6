// A job of three phases: what follows the end of each, and what a stop or a failure there leaves.
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/job_defaults.h"
#include "proto/job/phases.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJob[] = "bible-1";

JobSpec Cycle() {
  JobSpec spec = MakeJob();
  spec.mutable_model()->set_layers(4);
  spec.mutable_model()->set_heads(4);
  spec.mutable_model()->set_hidden(64);
  spec.mutable_recipe()->clear_steps();
  spec.mutable_recipe()->clear_warmup_steps();
  spec.mutable_recipe()->clear_min_learning_rate();
  for (int64_t steps : {10, 20, 30}) spec.add_phases()->set_steps(steps);
  spec.mutable_phases(1)->set_layers(2);
  spec.mutable_phases(1)->set_heads(2);
  spec.mutable_recovery()->set_automatic(false);
  FillDefaults(&spec);
  EXPECT_TRUE(ValidateJob(spec).ok()) << ValidateJob(spec);
  return spec;
}

class JobPhasesTest : public ::testing::Test {
 protected:
  JobPhasesTest() : spec_(Cycle()) {
    for (int s = 0; s < 2; ++s) {
      isthmus::Register request;
      *request.mutable_node() = MakeNode(absl::StrCat("name", s), 10);
      request.mutable_node()->set_id(absl::StrCat("n", s));
      members_.Register(request, s + 1, At(0), At(0));
    }
    EXPECT_TRUE(jobs_.Add(kJob, 1, spec_, false, 77).ok());
    Start(0, 1);
  }
  static absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  const Job& job() { return *jobs_.Find(kJob); }
  JobState State() { return job().status.state(); }

  // As many daemons as stages.
  void Start(int phase, int stages, int64_t step = -1) {
    Plan plan;
    plan.set_job_id(kJob);
    plan.set_generation(++generation_);
    *plan.mutable_job() = PhaseJob(spec_, phase);
    *plan.mutable_job()->mutable_phases() = spec_.phases();
    plan.set_phase(phase);
    plan.set_phase_start(PhaseStart(spec_, phase));
    plan.set_start_step(step < 0 ? plan.phase_start() : step);
    plan.set_from_checkpoint(plan.start_step() > 0);
    plan.mutable_deadlines()->set_step_ms(20000);
    for (int s = 0; s < stages; ++s) {
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(s);
      rank->set_node_id(absl::StrCat("n", s));
      rank->set_node_name(absl::StrCat("name", s));
    }
    if (stages > 1) {
      plan.add_links()->set_id("b0");
      plan.mutable_links(0)->set_upper(1);
    }
    EXPECT_TRUE(jobs_.Start(kJob, plan, At(0), &spec_).ok());
    plan_ = plan;
    for (int s = 0; s < stages; ++s) Tell(s, SessionEvent::PREPARED);
    EXPECT_EQ(State(), JOB_RUNNING);
  }
  Commands Tell(int rank, SessionEvent::State state, int64_t step = 0) {
    SessionEvent e;
    e.set_job_id(kJob);
    e.set_generation(generation_);
    e.set_rank(rank);
    e.set_state(state);
    e.set_step(step);
    return jobs_.OnEvent(absl::StrCat("n", rank), e, At(5));
  }
  void Record(int64_t step) {
    for (int s = 0; s < plan_.ranks_size(); ++s) {
      StepRecord r;
      r.set_job_id(kJob);
      r.set_generation(generation_);
      r.set_step(step);
      r.set_rank(s);
      r.set_has_loss(s + 1 == plan_.ranks_size());
      r.set_step_s(1);
      if (link_bytes_ > 0 && s == 0) {
        DirectionBytes* d = r.add_directions();
        d->set_link_id("b0");
        d->set_forward(true);
        d->set_wire_bytes(link_bytes_);
      }
      EXPECT_TRUE(jobs_.OnStep(absl::StrCat("n", s), r, At(2), 0).ok());
    }
  }
  // Its last checkpoint is whole, and every daemon has ended.
  void End() {
    const int64_t end = EndOf(job());
    jobs_.OnCheckpoint(kJob, end, At(4));
    for (int s = 0; s < plan_.ranks_size(); ++s) Tell(s, SessionEvent::FINISHED, end);
  }

  const JobSpec spec_;
  Membership members_;
  JobTable jobs_;
  uint64_t generation_ = 0;
  int64_t link_bytes_ = 0;  // that the first rank tells of each step
  Plan plan_;
};

TEST_F(JobPhasesTest, EachPhaseFollowsTheOneBefore) {
  EXPECT_EQ(job().status.steps(), 60);
  EXPECT_EQ(job().status.phases(), 3);
  EXPECT_EQ(EndOf(job()), 10);
  for (int64_t step = 0; step < 10; ++step) Record(step);
  EXPECT_EQ(job().recent.back().record.phase(), 0);
  EXPECT_EQ(State(), JOB_RUNNING) << "its last checkpoint is being stored";
  End();
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_EQ(job().status.reason(), "phase 1 of 3 is done; phase 2 of 3 begins");
  EXPECT_TRUE(job().wait_for_nodes);
  EXPECT_FALSE(job().step_asked);
  EXPECT_EQ(job().status.step(), 10);
  EXPECT_EQ(job().spec.phases_size(), 3) << "the job keeps all its phases";
  EXPECT_EQ(job().spec.model().layers(), 4);

  Start(1, 2);
  EXPECT_EQ(job().status.phase(), 1);
  EXPECT_EQ(job().status.steps(), 60);
  EXPECT_EQ(EndOf(job()), 30);
  Record(10);
  EXPECT_EQ(job().recent.back().record.phase(), 1);
  EXPECT_EQ(job().recent.size(), 11u) << "records of the phase before stay";
  End();
  EXPECT_EQ(State(), JOB_PENDING);

  Start(2, 1);
  End();
  EXPECT_EQ(State(), JOB_FINISHED);
  EXPECT_EQ(job().status.step(), 60);
}

// Two phases of as many stages with the same cut: what both sent was one sum.
TEST_F(JobPhasesTest, BytesAreCountedForEachPhase) {
  End();
  Start(1, 2);
  link_bytes_ = 100;
  Record(10);
  ASSERT_EQ(job().boundaries.size(), 1u);
  EXPECT_EQ(job().boundaries[0].wire_bytes(), 100);
  End();
  Start(2, 2);
  Record(30);
  ASSERT_EQ(job().boundaries.size(), 1u);
  EXPECT_EQ(job().boundaries[0].wire_bytes(), 100);
  EXPECT_EQ(job().boundaries[0].from_step(), 30);
}

// A step of half the width and half the layers takes about an eighth; ETA is in steps of the phase.
TEST_F(JobPhasesTest, TimeThatIsLeftGoesByTheWorkOfThePhases) {
  for (int64_t step = 0; step < 5; ++step) Record(step);
  const double eta = jobs_.Status(job(), At(3)).eta_s();
  EXPECT_GT(eta, 5 + 30);
  EXPECT_LT(eta, 5 + 30 + 20 * 0.6);
}

TEST_F(JobPhasesTest, AStopAtTheEndOfAPhaseIsAStop) {
  for (int64_t step = 0; step < 10; ++step) Record(step);
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(3)).ok());
  End();
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_THAT(job().status.reason(), HasSubstr("its last checkpoint is of step 10"));
}

TEST_F(JobPhasesTest, AStopBetweenTwoPhases) {
  End();
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(6)).ok());
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_EQ(job().status.reason(),
            "stopped by the user between two phases; its last checkpoint is of step 10: submit "
            "--resume goes on from there");
}

TEST_F(JobPhasesTest, ADaemonThatFailsWhenAllIsStoredChangesNothing) {
  jobs_.OnCheckpoint(kJob, 10, At(4));
  Tell(0, SessionEvent::FAILED, 10);
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_THAT(job().status.reason(), HasSubstr("though at the end: "));
}

TEST_F(JobPhasesTest, ADaemonThatFailsInAPhasePausesTheJob) {
  jobs_.OnCheckpoint(kJob, 5, At(4));
  Record(5);
  Tell(0, SessionEvent::FAILED, 6);
  EXPECT_EQ(State(), JOB_PAUSED);
  // The checkpoint that would have ended the phase comes from the daemons' disks: nobody asked for
  // the job to go on.
  jobs_.OnCheckpoint(kJob, 10, At(9));
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_THAT(job().status.reason(), HasSubstr("its last checkpoint is of step 10"));
}

TEST_F(JobPhasesTest, WeightsThatCannotBeMadePauseTheJob) {
  End();
  jobs_.PhaseFailed(kJob, "the disk is full", At(6));
  EXPECT_EQ(State(), JOB_PAUSED);
  EXPECT_EQ(job().status.reason(),
            "phase 2 of 3 could not begin: the disk is full; its last checkpoint is of step 10: "
            "submit --resume goes on from there");
  jobs_.PhaseFailed(kJob, "again", At(7));
  EXPECT_THAT(job().status.reason(), HasSubstr("the disk is full"));
}

TEST_F(JobPhasesTest, ARestartBetweenTwoPhasesGoesOn) {
  End();
  Job stored;
  stored.id = kJob;
  stored.number = 1;
  stored.spec = job().spec;
  stored.wait_for_nodes = job().wait_for_nodes;
  stored.status = job().status;
  stored.plan = job().plan;
  JobTable restarted;
  restarted.Restore(stored, 10, 10, At(20));
  EXPECT_EQ(restarted.Find(kJob)->status.state(), JOB_PENDING);
  EXPECT_EQ(restarted.Find(kJob)->status.checkpoint_step(), 10);
  EXPECT_TRUE(restarted.Find(kJob)->wait_for_nodes);
}

}  // namespace
}  // namespace isthmus::coordinator
