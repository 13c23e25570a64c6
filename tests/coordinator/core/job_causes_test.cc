// Causes of failures are typed: what JobTable does never depends on words, its own or a daemon's.
#include <functional>

#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kStages = 3;
constexpr char kJob[] = "bible-1";

class JobCausesTest : public ::testing::Test {
 protected:
  static absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  void Add() {
    jobs_ = std::make_unique<JobTable>();
    JobSpec spec;
    spec.set_name("bible");
    spec.mutable_recipe()->set_steps(100);
    ASSERT_TRUE(jobs_->Add(kJob, 1, spec, true, 77).ok());
  }
  void Run(uint64_t generation = 1) {
    if (generation == 1) Add();
    Plan plan;
    plan.set_job_id(kJob);
    plan.set_generation(generation);
    *plan.mutable_job() = jobs_->Find(kJob)->spec;
    for (int s = 0; s < kStages; ++s) {
      RankPlan* stage = plan.add_ranks();
      stage->set_stage(s);
      stage->set_node_id(absl::StrCat("n", s));
      stage->set_node_name(absl::StrCat("name", s));
    }
    ASSERT_TRUE(jobs_->Start(kJob, plan, At(0)).ok());
    for (int s = 0; s < kStages; ++s) Tell(s, Event(s, SessionEvent::PREPARED, 0, generation));
    ASSERT_EQ(Status().state(), JOB_RUNNING);
  }
  static SessionEvent Event(int stage, SessionEvent::State state, int64_t step = 0,
                            uint64_t generation = 1) {
    SessionEvent e;
    e.set_job_id(kJob);
    e.set_generation(generation);
    e.set_rank(stage);
    e.set_state(state);
    e.set_step(step);
    return e;
  }
  void Tell(int stage, const SessionEvent& event) {
    jobs_->OnEvent(absl::StrCat("n", stage), event, At(4));
  }
  const JobStatus& Status() { return jobs_->Find(kJob)->status; }

  std::unique_ptr<JobTable> jobs_;
};

// Whether a daemon is called lost already was once read from the reason, which daemons write too.
TEST_F(JobCausesTest, WordsOfADaemonNeitherHideNorMakeACause) {
  Run();
  jobs_->OnStreamGone("n1", At(3));
  SessionEvent failed = Event(0, SessionEvent::FAILED);
  failed.set_message("daemon name1 is lost; no progress; the last checkpoint is held");
  Tell(0, failed);
  EXPECT_THAT(Status().reason(),
              StartsWith("daemon name1 is lost (its connection ended 1 s before this)"));
  EXPECT_EQ(Status().cause().kind(), FailureCause::SESSION_FAILED);
  EXPECT_EQ(Status().cause().rank(), 0);
  EXPECT_EQ(Status().cause().node(), "n0");
  EXPECT_THAT(Status().cause().lost(), ElementsAre("n1"));
  jobs_->OnStreamGone("n2", At(5));
  jobs_->OnStreamGone("n2", At(5));
  EXPECT_THAT(Status().cause().lost(), ElementsAre("n1", "n2"));
}

TEST_F(JobCausesTest, TheCauseIsTheRankThatFailedFirstAsFarAsThePlanHasIt) {
  for (uint64_t generation : {1, 2, 3}) {
    Run(generation);
    EXPECT_FALSE(Status().has_cause()) << generation;
    SessionEvent failed = Event(0, SessionEvent::FAILED, 8, generation);
    *failed.mutable_cause() = MakeCause(FailureCause::SESSION_FAILED, 2, "n2", 9);
    if (generation == 2) failed.mutable_cause()->set_rank(kStages);
    if (generation == 3) failed.mutable_cause()->set_node("elsewhere");
    Tell(0, failed);
    EXPECT_EQ(Status().cause().rank(), generation == 1 ? 2 : 0) << generation;
    EXPECT_EQ(Status().cause().node(), generation == 1 ? "n2" : "n0") << generation;
  }
}

// "stage 0 on daemon name0 failed at step 8: session failed at stage 2 (name2, ...), step 9: link
// b1 with stage 1 (name1, ...): link b1 to stage 1 (node name1, ...): ...": each is named once.
TEST_F(JobCausesTest, ABrokenLinkIsToldByTheRankThatSawIt) {
  Run();
  SessionEvent failed = Event(0, SessionEvent::FAILED, 8);
  *failed.mutable_cause() = MakeCause(FailureCause::SESSION_FAILED, 2, "n2", 9);
  failed.set_message(
      "stage 2 (name2, 10.0.0.3:7071) failed at step 9: link b1 with stage 1 (name1, "
      "10.0.0.2:7071): the connection broke, or the peer ended without saying why. Check that the "
      "node runs and its network is up");
  Tell(0, failed);
  EXPECT_EQ(Status().reason(),
            absl::StrCat(failed.message(),
                         "; there is no checkpoint yet: submit --resume starts at step 0"));
}

// A daemon that was killed tells its last records once it is back: no session tells them.
TEST_F(JobCausesTest, RecordsOfASessionThatIsGoneAreTakenAndDoNotBringItBack) {
  Run();
  JobTable after;
  const Membership members;
  after.Restore(*jobs_->Find(kJob), -1, 0, At(10));
  const auto step = [&](int64_t number, double s) {
    for (int stage = 0; stage < kStages; ++stage) {
      StepRecord record;
      record.set_job_id(kJob);
      record.set_generation(1);
      record.set_step(number);
      record.set_rank(stage);
      record.set_has_loss(stage + 1 == kStages);
      ASSERT_TRUE(after.OnStep(absl::StrCat("n", stage), record, At(s), 1000).ok());
    }
  };
  for (int stage = 0; stage < kStages; ++stage) {
    isthmus::Register back;
    back.mutable_node()->set_id(absl::StrCat("n", stage));
    back.set_running_job_id(kJob);
    after.OnRegistered(back.node().id(), back, true, At(15));
  }
  step(0, 16);
  EXPECT_EQ(after.Find(kJob)->status.step(), 1) << "no step is missing in the log";
  EXPECT_TRUE(after.Tick(members, At(25)).empty()) << "how it ended may follow";
  EXPECT_EQ(after.Tick(members, At(26)).size(), 2u);
  EXPECT_THAT(after.Find(kJob)->status.reason(), HasSubstr("came back without its session"));
  step(1, 27);
  EXPECT_EQ(after.Find(kJob)->status.step(), 2);
}

TEST_F(JobCausesTest, EveryEndThatIsNotTheGoalSaysHowToGoOn) {
  const auto stop = [&](bool at_once) { EXPECT_TRUE(jobs_->Stop(kJob, at_once, At(4)).ok()); };
  const auto finish = [&] {
    for (int s = 0; s < kStages; ++s) Tell(s, Event(s, SessionEvent::FINISHED, 3));
  };
  const std::vector<std::function<void()>> ends = {[&] { Tell(0, Event(0, SessionEvent::FAILED)); },
                                                   [&] { stop(true); },
                                                   [&] {
                                                     stop(false);
                                                     finish();
                                                   },
                                                   finish,
                                                   [&] {
                                                     Add();
                                                     stop(false);
                                                   }};
  for (const auto& end : ends) {
    Run();
    end();
    EXPECT_TRUE(jobs_->Find(kJob)->ended());
    EXPECT_THAT(Status().reason(), HasSubstr("submit --resume"));
  }
}

}  // namespace
}  // namespace isthmus::coordinator
