#include "proto/job/job_names.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job/job_defaults.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Commands would take such a name for an option.
TEST(JobNamesTest, NoNameLooksLikeAnOption) {
  for (const char* good : {"a", "bible", "job-2", "0", "a-"})
    EXPECT_TRUE(CheckJobName(good).ok()) << good;
  for (const char* bad : {"", "-odd", "--help", "-h", "Bible", "a b", "a/b"}) {
    const absl::Status refused = CheckJobName(bad);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("name: '" + std::string(bad) + "' is"));
  }
  EXPECT_TRUE(CheckJobName(std::string(63, 'a')).ok());
  EXPECT_FALSE(CheckJobName(std::string(64, 'a')).ok());
}

TEST(JobNamesTest, EachDaemonIsNamedOnce) {
  StrategySpec strategy;
  EXPECT_THAT(NodeNameErrors(strategy), IsEmpty());
  strategy.add_nodes("d0");
  strategy.add_nodes("d1");
  EXPECT_THAT(NodeNameErrors(strategy), IsEmpty());
  strategy.add_nodes("d0");
  strategy.add_nodes("");
  const auto errors = NodeNameErrors(strategy);
  ASSERT_THAT(errors, SizeIs(2));
  EXPECT_THAT(std::string(errors[0].message()), HasSubstr("strategy.nodes: 'd0' is there twice"));
  EXPECT_THAT(std::string(errors[1].message()), HasSubstr("strategy.nodes: '' is not allowed"));
  JobSpec job;
  *job.mutable_strategy() = strategy;
  int said = 0;
  for (const absl::Status& error : JobErrors(job))
    said += static_cast<int>(error.message().substr(0, 15) == "strategy.nodes:");
  EXPECT_EQ(said, 2);
}

// A boundary's exception was looked for at each of them.
TEST(JobNamesTest, ManyStagesAreRefused) {
  JobSpec job;
  job.mutable_strategy()->set_stages(std::numeric_limits<int32_t>::max());
  bool said = false;
  for (const absl::Status& error : JobErrors(job))
    said = said || error.message().substr(0, 16) == "strategy.stages:";
  EXPECT_TRUE(said);
}

}  // namespace
}  // namespace isthmus
