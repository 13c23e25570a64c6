// The id of one job is never the name of another: each command is about the job that is meant.
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

TEST_F(ServiceTest, AnIdIsNoOtherJobsName) {
  JobSpec first = TwoStages(), second = TwoStages(), third = TwoStages();
  first.set_name("job-2");
  second.set_name("job");
  const auto a = Submit(first, false, true);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->job_id(), "job-2-1");
  const auto b = Submit(second, false, true);
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->job_id(), "job-3") << "job-2 is the name of another";
  StopJobRequest stop;
  stop.set_job("job-2");
  const auto stopped = Call<StopJobRequest, StopJobReply>(&Jobs::Stub::Stop, stop);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->status().job_id(), "job-2-1");
  third.set_name("job-3");
  const absl::Status taken = Submit(third, false, true).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("is the id of job 'job'"));
}

}  // namespace
}  // namespace isthmus::coordinator
