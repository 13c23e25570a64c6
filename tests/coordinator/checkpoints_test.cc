// Checkpoints as the whole coordinator serves them: stored, chosen, listed, read, removed.
#include <optional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

class CheckpointsTest : public ServiceTest {};

TEST_F(CheckpointsTest, AResumeMayGoOnFromAnOlderCheckpoint) {
  auto a = Daemon("a"), b = Daemon("b");
  const JobSpec job = TwoStages();
  const Plan plan = StartTwo(a.get(), b.get(), job);
  for (int step = 0; step < 6; ++step) {
    for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, step, 5);
  }
  EXPECT_TRUE(PutAll(plan, 2));
  EXPECT_TRUE(PutAll(plan, 4));
  EXPECT_TRUE(PutAll(plan, 6));
  const auto fail = [&](const Plan& of) {
    for (FakeDaemon* d : {a.get(), b.get()}) {
      d->Event(of, SessionEvent::FAILED, 6, "the test says so");
      d->SetGeneration(0);
    }
    EXPECT_TRUE(Becomes(JOB_PAUSED));
  };
  fail(plan);
  const auto resume = [&](std::optional<int64_t> step) {
    SubmitRequest request;
    *request.mutable_job() = job;
    request.set_resume(true);
    if (step.has_value()) request.set_resume_step(*step);
    return Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  };
  EXPECT_EQ(resume(3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(resume(3).status().message()),
              HasSubstr("there are those of steps 2, 4, 6"));
  PlanRequest ask;
  *ask.mutable_job() = job;
  ask.set_resume(true);
  EXPECT_EQ((Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask)->plan().start_step()), 6);
  ask.set_resume_step(4);
  EXPECT_EQ((Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask)->plan().start_step()), 4);
  ask.set_resume(false);
  EXPECT_EQ((Call<PlanRequest, PlanReply>(&Jobs::Stub::MakePlan, ask).status().code()),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(resume(4).ok());
  const Plan again = a->NextStart().value();
  EXPECT_EQ(b->NextStart()->start_step(), 4);
  EXPECT_EQ(Status().checkpoint_step(), 4);
  EXPECT_EQ(Status().step(), 4);
  EXPECT_TRUE(PutAll(again, 5));
  EXPECT_EQ(Status().checkpoint_step(), 5) << "of the newer run, though 6 is more";
  fail(again);
  EXPECT_EQ(resume(std::nullopt)->plan().start_step(), 5);
}

}  // namespace
}  // namespace isthmus::coordinator
