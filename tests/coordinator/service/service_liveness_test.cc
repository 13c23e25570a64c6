// Daemons of which little is heard, over loopback with fake daemons.
#include "coordinator/service/daemons.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

TEST_F(ServiceTest, ABurstOfRecordsIsInTheHistoryBeforeTheNextWrite) {
  Close();
  flush_every_ = absl::Hours(1);
  Open();
  auto a = Daemon("a"), b = Daemon("b");
  constexpr int kSteps = kRecentRecords + 100;
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages(kSteps));
  for (int step = 0; step < kSteps; ++step) {
    for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, step, 5);
  }
  EXPECT_TRUE(Eventually([&] { return Status().step() == kSteps; }));
  WatchRequest watch;
  watch.set_job("bible");
  grpc::ClientContext context;
  const auto stream = jobs_->Watch(&context, watch);
  WatchReply reply;
  int seen = 0;
  while (stream->Read(&reply)) {
    for (const JobRecord& r : reply.records()) EXPECT_EQ(r.step(), seen++);
  }
  EXPECT_EQ(seen, kSteps);
}

TEST_F(ServiceTest, AJobOfWhichNobodyIsHeardIsPausedAndGoesOnIfItsDaemonsTrainedOn) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  Close();
  a.reset();
  b.reset();
  Open();
  EXPECT_TRUE(Becomes(JOB_FAILED));
  EXPECT_THAT(Status().reason(), HasSubstr("nobody of the job was heard for"));
  Close();  // a second restart forgets nothing of it
  Open();
  const auto trained_on = [&](FakeDaemon::Options* o) {
    o->running_generation = plan.generation();
    o->running_job_id = plan.job_id();
  };
  a = Daemon("a", trained_on);
  EXPECT_TRUE(Becomes(JOB_RUNNING));
  b = Daemon("b", trained_on);
  a->Vanish();
  b->Event(plan, SessionEvent::FAILED, 1, "link b0: the other end is gone");
  EXPECT_TRUE(Becomes(JOB_FAILED)) << "a session that failed is one";
  a = Daemon("a", [](FakeDaemon::Options* o) { o->instance = "again"; });
  b->SetGeneration(0);
  ASSERT_TRUE(Submit(TwoStages(), true).ok());
  EXPECT_GT(b->NextStart()->generation(), plan.generation()) << "generations never repeat";
}

TEST_F(ServiceTest, ALostConnectionToTheCoordinatorEndsNoSession) {
  auto a = Daemon("a"), b = Daemon("b");
  const Plan plan = StartTwo(a.get(), b.get(), TwoStages());
  a->Vanish();
  EXPECT_TRUE(Eventually([&] { return Status().warnings_size() == 1; }));
  EXPECT_THAT(Status().warnings(0), HasSubstr("daemon a is silent: nothing was heard of it for"));
  EXPECT_EQ(Status().state(), JOB_RUNNING);
  JobSpec other = TwoStages();
  other.set_name("other");
  other.mutable_strategy()->set_stages(1);
  EXPECT_EQ(Submit(other).status().code(), absl::StatusCode::kUnavailable) << "it may come back";
  EXPECT_THAT(std::string(Submit(other).status().message()), HasSubstr("a is lost, last heard"))
      << "no plan counts on it meanwhile";
  a = Daemon("a", [&](FakeDaemon::Options* o) {
    o->running_generation = plan.generation();
    o->running_job_id = plan.job_id();
  });
  EXPECT_TRUE(Eventually([&] { return Status().warnings_size() == 0; }));
  for (FakeDaemon* d : {a.get(), b.get()}) d->Step(plan, 0, 5);
  EXPECT_TRUE(Eventually([&] { return Status().step() == 1; }));
}

}  // namespace
}  // namespace isthmus::coordinator
