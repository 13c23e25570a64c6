// A job of two daemons, and what becomes of it: for the tests of jobs that go on by themselves.
#ifndef ISTHMUS_TESTS_COORDINATOR_CORE_JOB_RECOVERY_FIXTURE_H_
#define ISTHMUS_TESTS_COORDINATOR_CORE_JOB_RECOVERY_FIXTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {

constexpr int kStages = 2;
constexpr char kJob[] = "bible-1";

inline absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }

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

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_CORE_JOB_RECOVERY_FIXTURE_H_
