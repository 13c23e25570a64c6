// Resumes of a job that says otherwise than the run which wrote the checkpoint, through the whole
// coordinator.
#include "coordinator/service/resume.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

class ResumeTest : public ServiceTest {
 protected:
  std::unique_ptr<FakeDaemon> DaemonWith(const std::string& name, uint64_t contents) {
    return Daemon(name, [&](FakeDaemon::Options* options) {
      options->node.mutable_data_files(0)->set_contents(contents);
    });
  }
  // Trains to `step`, stores a checkpoint and pauses.
  void TrainAndPause(const Plan& plan, int64_t step, FakeDaemon* a, FakeDaemon* b) {
    for (int64_t s = plan.start_step(); s < step; ++s) {
      for (FakeDaemon* d : {a, b}) d->Step(plan, s, 5);
    }
    EXPECT_TRUE(PutAll(plan, step));
    EXPECT_TRUE(Eventually([&] { return Status().step() == step; }));
    for (FakeDaemon* d : {a, b}) {
      d->Event(plan, SessionEvent::FAILED, step, "the test says so");
      d->SetGeneration(0);
    }
    EXPECT_TRUE(Becomes(JOB_PAUSED));
  }
  absl::StatusOr<SubmitReply> Resume(const JobSpec& job, bool accept) {
    SubmitRequest request;
    *request.mutable_job() = job;
    request.set_resume(true);
    request.set_accept_changes(accept);
    return Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  }
  absl::StatusOr<PlanReply> Ask(const JobSpec& job) {
    PlanRequest request;
    *request.mutable_job() = job;
    request.set_resume(true);
    return Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, request);
  }
};

TEST_F(ResumeTest, AnotherBatchIsRefusedThenGoesOnWhereTheDataStand) {
  auto a = DaemonWith("a", kContents), b = DaemonWith("b", kContents);
  JobSpec job = TwoStages(40);
  const int64_t context = job.model().context();
  const Plan plan = StartTwo(a.get(), b.get(), job);
  TrainAndPause(plan, 6, a.get(), b.get());
  EXPECT_EQ(Status().samples(), 6 * 32);

  job.mutable_recipe()->set_global_batch(64);
  const auto asked = Ask(job);
  ASSERT_TRUE(asked.ok()) << asked.status();
  ASSERT_EQ(asked->changes_size(), 1);
  EXPECT_EQ(asked->changes(0).field(), "recipe.global_batch");
  EXPECT_TRUE(asked->changes(0).alters_run());
  const auto refused = Resume(job, false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("recipe.global_batch: 32 -> 64"));
  EXPECT_EQ(Status().state(), JOB_PAUSED);

  const auto accepted = Resume(job, true);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->changes_size(), 1);
  const Plan second = a->NextStart().value();
  EXPECT_EQ(second.data().samples(), 6 * 32);
  EXPECT_EQ(second.data().offset(), 6 * 32);
  EXPECT_EQ(Status().tokens(), 6 * 32 * context);
  ASSERT_TRUE(b->NextStart().ok());
  TrainAndPause(second, 8, a.get(), b.get());
  EXPECT_EQ(Status().tokens(), (6 * 32 + 2 * 64) * context);

  job.mutable_recipe()->set_global_batch(16);
  ASSERT_TRUE(Resume(job, true).ok());
  EXPECT_EQ(a->NextStart()->data().samples(), 6 * 32 + 2 * 64);
  EXPECT_EQ(Status().tokens(), (6 * 32 + 2 * 64) * context) << "a smaller batch takes none back";
}

TEST_F(ResumeTest, AnotherTextIsRefusedBeforeItStarts) {
  auto a = DaemonWith("a", kContents), b = DaemonWith("b", kContents);
  const JobSpec job = TwoStages(40);
  TrainAndPause(StartTwo(a.get(), b.get(), job), 3, a.get(), b.get());
  ASSERT_TRUE(Ask(job).ok());
  EXPECT_EQ(Ask(job)->changes_size(), 0);
  a.reset();
  b.reset();
  a = DaemonWith("a", 0xbad);
  b = DaemonWith("b", 0xbad);
  ASSERT_TRUE(Eventually([&] { return Ask(job).ok(); }));
  const auto refused = Resume(job, false);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("data: text.txt (fingerprint 0000000000400000) -> text.txt (fingerprint "
                        "0000000000000bad) (another text: a new pass begins)"));
  ASSERT_TRUE(Resume(job, true).ok());
  const Plan plan = a->NextStart().value();
  EXPECT_EQ(plan.data().epoch(), 1);
  EXPECT_EQ(plan.data().offset(), 0);
  EXPECT_EQ(plan.data().samples(), 3 * 32);
}

// What was accepted at submission stays so while the job waits for daemons.
TEST_F(ResumeTest, AJobThatWaitsGoesOnWithWhatWasAccepted) {
  auto a = DaemonWith("a", kContents), b = DaemonWith("b", kContents);
  JobSpec job = TwoStages(40);
  TrainAndPause(StartTwo(a.get(), b.get(), job), 3, a.get(), b.get());
  b.reset();
  ASSERT_TRUE(Eventually([&] { return !Ask(job).ok(); }));
  job.mutable_recipe()->set_global_batch(64);
  SubmitRequest request;
  *request.mutable_job() = job;
  request.set_resume(true);
  request.set_wait_for_nodes(true);
  EXPECT_FALSE((Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request).ok()));
  request.set_accept_changes(true);
  const auto waits = Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(waits->changes_size(), 1);
  b = DaemonWith("b", kContents);
  const auto plan = a->NextStart();
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->start_step(), 3);
  EXPECT_EQ(plan->data().samples(), 3 * 32);
  EXPECT_EQ(plan->job().recipe().global_batch(), 64);
}

// The one that came second was told that the coordinator was stopping.
TEST_F(ResumeTest, OfResumesAtOnceOneStartsAndTheOthersAreToldWhy) {
  auto a = DaemonWith("a", kContents), b = DaemonWith("b", kContents);
  const JobSpec job = TwoStages(40);
  const Plan plan = StartTwo(a.get(), b.get(), job);
  TrainAndPause(plan, 6, a.get(), b.get());
  constexpr int kAtOnce = 8;
  std::vector<absl::Status> told(kAtOnce);
  std::vector<std::thread> callers;
  for (absl::Status& status : told)
    callers.emplace_back([&] { status = Resume(job, false).status(); });
  for (std::thread& caller : callers) caller.join();
  int started = 0;
  for (const absl::Status& status : told) {
    started += status.ok();
    EXPECT_FALSE(absl::IsCancelled(status)) << status;
  }
  EXPECT_EQ(started, 1);
}

}  // namespace
}  // namespace isthmus::coordinator
