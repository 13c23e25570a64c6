#include "coordinator/core/job_names.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

JobSpec Named(const std::string& name) {
  JobSpec spec;
  spec.set_name(name);
  return spec;
}

// As an earlier version stored it.
void Restore(JobTable* jobs, const std::string& id, uint64_t number, const std::string& name) {
  Job job;
  job.id = id;
  job.number = number;
  job.spec = Named(name);
  job.status.set_job_id(id);
  job.status.set_name(name);
  job.status.set_state(JOB_STOPPED);
  jobs->Restore(std::move(job), -1, 0, absl::UnixEpoch());
}

TEST(JobNamesTest, ANewIdIsNoJobsName) {
  JobTable jobs;
  ASSERT_TRUE(jobs.Add("job-2-1", 1, Named("job-2"), false, 0).ok());
  EXPECT_THAT(std::string(IdIsFree(jobs, "job-2").message()), HasSubstr("job-2-1 has that name"));
  EXPECT_EQ(jobs.Add("job-2", 2, Named("job"), false, 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(IdIsFree(jobs, "job-3").ok());
  EXPECT_TRUE(jobs.Add("job-3", 3, Named("job"), false, 0).ok());
}

TEST(JobNamesTest, ANewNameIsNoJobsId) {
  JobTable jobs;
  Restore(&jobs, "job-2", 2, "job");  // it has ended
  EXPECT_THAT(std::string(jobs.NameIsFree("job-2").message()),
              HasSubstr("'job-2' is the id of job 'job'"));
  EXPECT_TRUE(jobs.NameIsFree("job").ok());
}

TEST(JobNamesTest, WordsThatFitTwoJobsNameNeither) {
  JobTable jobs;
  Restore(&jobs, "job-2-1", 1, "job-2");
  Restore(&jobs, "job-2", 2, "job");
  EXPECT_EQ((*JobCalled(jobs, "job"))->id, "job-2");
  EXPECT_EQ((*JobCalled(jobs, "job-2-1"))->id, "job-2-1");
  EXPECT_EQ(*JobCalled(jobs, "other"), nullptr);
  EXPECT_EQ(NewestNamed(jobs, "job-2")->id, "job-2-1");
  const absl::Status both = JobCalled(jobs, "job-2").status();
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(both.message()), HasSubstr("say job-2-1 for the one, job for the other"));
  Restore(&jobs, "job-3", 3, "job");
  EXPECT_THAT(std::string(JobCalled(jobs, "job-2").status().message()), HasSubstr("remove it"));
}

}  // namespace
}  // namespace isthmus::coordinator
