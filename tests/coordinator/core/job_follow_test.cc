// Running jobs whose links change: when they may take a new plan, and how they do.
#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kJob[] = "bible-1";
constexpr char kWhy[] = "a new plan is taken: it gains 90 s";

absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }

class JobFollowTest : public ::testing::Test {
 protected:
  // On daemons a and b, running from 0 s on.
  void Run(bool follow = true, bool automatic = true) {
    JobSpec spec;
    spec.set_name("bible");
    spec.mutable_recipe()->set_steps(100);
    spec.mutable_recovery()->set_automatic(automatic);
    spec.mutable_recovery()->set_attempts(2);
    spec.mutable_recovery()->set_follow(follow);
    ASSERT_TRUE(jobs_.Add(kJob, 1, spec, false, 77).ok());
    Start(1, 0, 0);
  }
  void Start(uint64_t generation, int64_t from, double s, bool alone = false) {
    Plan plan;
    plan.set_job_id(kJob);
    plan.set_generation(generation);
    plan.set_start_step(from);
    plan.set_from_checkpoint(from > 0);
    *plan.mutable_job() = job().spec;
    for (const char* name : {"a", "b"}) {
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(plan.ranks_size() - 1);
      rank->set_node_id(absl::StrCat("id-", name));
      rank->set_node_name(name);
    }
    plan.add_links()->set_id("b0");
    plan.mutable_links(0)->set_upper(1);
    if (alone) {
      plan.mutable_ranks()->RemoveLast();
      plan.clear_links();
    }
    ASSERT_TRUE(jobs_.Start(kJob, plan, At(s), nullptr).ok());
    for (int rank = 0; rank < plan.ranks_size(); ++rank) Tell(rank, SessionEvent::PREPARED, s);
    ASSERT_EQ(State(), JOB_RUNNING);
  }
  Commands Tell(int rank, SessionEvent::State state, double s, int64_t step = 0) {
    SessionEvent e;
    e.set_job_id(kJob);
    e.set_generation(job().status.generation());
    e.set_rank(rank);
    e.set_state(state);
    e.set_step(step);
    return jobs_.OnEvent(rank == 0 ? "id-a" : "id-b", e, At(s));
  }
  void Steps(int64_t from, int64_t to, double s, double step_s = 1) {
    for (int64_t step = from; step < to; ++step) {
      for (int rank = 0; rank < 2; ++rank) {
        StepRecord r;
        r.set_job_id(kJob);
        r.set_generation(job().status.generation());
        r.set_step(step);
        r.set_rank(rank);
        r.set_step_s(step_s);
        r.set_has_loss(rank == 1);
        ASSERT_TRUE(jobs_.OnStep(rank == 0 ? "id-a" : "id-b", r, At(s), 1).ok());
      }
    }
  }
  static LinkNews Slower() { return {"id-a", "id-b", 98e6, 9.6e6, 98e6, "a", "b"}; }
  // It leaves its generation, which ends at step 13 and 20 s.
  void Move() {
    jobs_.OnLinkNews(Slower());
    EXPECT_THAT(jobs_.Followed(kJob, kWhy, true, At(15)), SizeIs(2));
    EXPECT_EQ(State(), JOB_STOPPING);
    jobs_.OnCheckpoint(kJob, 13, At(19));
    for (int rank = 0; rank < 2; ++rank) Tell(rank, SessionEvent::FINISHED, 20, 13);
  }
  const Job& job() const { return *jobs_.Find(kJob); }
  JobState State() const { return job().status.state(); }
  bool May(double s) const { return jobs_.MayMove(job(), At(s)); }

  JobTable jobs_;
  Membership members_;
};

TEST_F(JobFollowTest, ALinkThatChangedMakesItsPlanWorthALook) {
  Run();
  Steps(0, 12, 10);
  EXPECT_FALSE(May(11));
  EXPECT_THAT(jobs_.FollowedLinks(), ::testing::ElementsAre(MeasuredLinks::Pair("id-a", "id-b"),
                                                            MeasuredLinks::Pair("id-b", "id-a")));
  jobs_.OnLinkNews({"id-a", "id-c", 98e6, 9.6e6, 98e6, "a", "b"});
  EXPECT_FALSE(May(11)) << "it is not one of its links";
  jobs_.OnLinkNews(Slower());
  EXPECT_TRUE(May(11));
  const std::string seen = "link b0 (a -> b) carries 9.60 Mbit/s, where 98.0 Mbit/s were measured";
  EXPECT_EQ(job().status.following(), seen);
  EXPECT_THAT(jobs_.Followed(kJob, "today's plan stays", false, At(12)), IsEmpty());
  EXPECT_EQ(job().status.following(), seen + ": today's plan stays");
  EXPECT_EQ(State(), JOB_RUNNING);
  EXPECT_FALSE(May(50)) << "until something changes again";
  jobs_.OnLinkNews({"id-a", "id-b", 9.6e6, 98e6, 98e6, "a", "b"});
  EXPECT_FALSE(May(41)) << "not more often than that";
  EXPECT_TRUE(May(42));
  EXPECT_EQ(job().status.following(),
            "link b0 (a -> b) carries 98.0 Mbit/s after 9.60 Mbit/s, as measured");
}

TEST_F(JobFollowTest, NothingIsDecidedWhileSomethingElseGoesOn) {
  Run();
  jobs_.OnLinkNews(Slower());
  EXPECT_FALSE(May(1)) << "nothing is known yet of its steps";
  Steps(0, 12, 10);
  EXPECT_TRUE(May(11));
  jobs_.OnStreamGone("id-b", At(11));
  EXPECT_FALSE(May(12)) << "a daemon is gone";
  isthmus::Register back;
  back.mutable_node()->set_id("id-b");
  back.set_running_generation(1);
  back.set_running_job_id(kJob);
  jobs_.OnRegistered("id-b", back, false, At(13));
  EXPECT_TRUE(May(14));
  jobs_.OnCheckpointFailed(kJob, 1, 12, {0, 0, "weights", "the disk is full"}, At(14));
  EXPECT_FALSE(May(15)) << "it could not be stored what it goes on from";
  jobs_.OnCheckpoint(kJob, 12, At(16));
  EXPECT_TRUE(May(17));
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(18)).ok());
  EXPECT_FALSE(May(19));
}

TEST_F(JobFollowTest, AJobThatDoesNotFollowIsLeftAlone) {
  Run(false);
  Steps(0, 12, 10);
  jobs_.OnLinkNews(Slower());
  EXPECT_FALSE(May(11));
  EXPECT_THAT(job().status.following(), IsEmpty());
  EXPECT_THAT(jobs_.FollowedLinks(), IsEmpty());
}

TEST_F(JobFollowTest, AMoveEndsInGoodOrderAndIsNoInterruption) {
  Run(true, false);  // also where the user resumes interrupted jobs
  Steps(0, 12, 10);
  Move();
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_TRUE(job().recovering && job().moving);
  EXPECT_THAT(job().status.reason(),
              HasSubstr("gains 90 s; the job ended in good order after step 13; its last "
                        "checkpoint is of step 13: it goes on from there by itself"));
  EXPECT_THAT(jobs_.Working(), SizeIs(2)) << "its links are not measured meanwhile";
  Start(2, 13, 22);
  EXPECT_FALSE(job().moving);
  EXPECT_EQ(job().status.moves(), 1);
  EXPECT_EQ(job().status.recoveries(), 0);
  EXPECT_EQ(job().interruptions, 0);
}

TEST_F(JobFollowTest, ItRestsAfterAMoveAsLongAsThatTookTenTimes) {
  Run();
  Steps(0, 12, 10);
  Move();  // from 15 s on
  Start(2, 13, 22);
  Steps(13, 14, 25);
  EXPECT_EQ(job().move_took, absl::Seconds(8)) << "of ten seconds two are steps";
  Steps(14, 20, 30);
  jobs_.OnLinkNews(Slower());
  EXPECT_FALSE(May(104));
  EXPECT_TRUE(May(105));
}

// The daemon at the other end is free then.
TEST_F(JobFollowTest, ALinkThatItMovedAwayFromIsWatchedUntilItComesBack) {
  Run();
  Steps(0, 12, 10);
  Move();
  Start(2, 13, 22, true);
  EXPECT_THAT(jobs_.FollowedLinks(), ::testing::ElementsAre(MeasuredLinks::Pair("id-a", "id-b")));
  for (int64_t step = 13; step < 17; ++step) {
    StepRecord r;
    r.set_job_id(kJob);
    r.set_generation(2);
    r.set_step(step);
    r.set_has_loss(true);
    ASSERT_TRUE(jobs_.OnStep("id-a", r, At(25), 1).ok());
  }
  EXPECT_FALSE(May(200));
  jobs_.OnLinkNews({"id-a", "id-b", 9.6e6, 98e6, 98e6, "a", "b"});
  EXPECT_TRUE(May(200));
  EXPECT_EQ(job().status.following(),
            "the link a -> b carries 98.0 Mbit/s after 9.60 Mbit/s, as measured");
  jobs_.Followed(kJob, "today's plan stays", false, At(201));
  EXPECT_THAT(jobs_.FollowedLinks(), IsEmpty());
}

TEST_F(JobFollowTest, AFailureInAMoveIsAnInterruption) {
  Run();
  Steps(0, 12, 10);
  jobs_.OnLinkNews(Slower());
  jobs_.Followed(kJob, kWhy, true, At(15));
  Tell(0, SessionEvent::FAILED, 16, 12);
  EXPECT_EQ(State(), JOB_PENDING);
  EXPECT_FALSE(job().moving);
  EXPECT_EQ(job().interruptions, 1);
  EXPECT_THAT(job().status.reason(), HasSubstr("before the job had ended in good order"));
}

TEST_F(JobFollowTest, ItsUserMayStopItMeanwhile) {
  Run();
  Steps(0, 12, 10);
  jobs_.OnLinkNews(Slower());
  jobs_.Followed(kJob, kWhy, true, At(15));
  ASSERT_TRUE(jobs_.Stop(kJob, false, At(16)).ok());
  jobs_.OnCheckpoint(kJob, 13, At(19));
  for (int rank = 0; rank < 2; ++rank) Tell(rank, SessionEvent::FINISHED, 20, 13);
  EXPECT_EQ(State(), JOB_STOPPED);
  EXPECT_FALSE(job().moving);
  Start(2, 13, 1000);  // a resume, much later
  Steps(13, 14, 1001);
  EXPECT_EQ(job().move_took, absl::ZeroDuration()) << "that was no move";
}

TEST_F(JobFollowTest, AMoveThatWaitsForLongIsAnInterruption) {
  Run();
  Steps(0, 12, 10);
  Move();
  jobs_.Tick(members_, At(30));
  EXPECT_TRUE(job().moving);
  jobs_.Tick(members_, At(40));  // a daemon of it is gone, say
  EXPECT_FALSE(job().moving);
  EXPECT_THAT(jobs_.Working(), IsEmpty());
  EXPECT_EQ(State(), JOB_PENDING);
  Start(2, 13, 60);
  EXPECT_EQ(job().status.recoveries(), 1);
}

}  // namespace
}  // namespace isthmus::coordinator
