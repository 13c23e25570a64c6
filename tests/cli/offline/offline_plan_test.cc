#include "coordinator/cli/offline/offline_plan.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/app_fixture.h"

namespace isthmus::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class OfflinePlanTest : public AppTest {
 protected:
  Result Plan(std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", dir_ + "/job.yaml", "--set", "strategy.stages=2"});
    return RunCommand(std::move(more));
  }
  std::string Links() {
    const std::string path = dir_ + "/links.csv";
    std::ofstream(path) << "from,to,rate,delay,jitter,loss\nhome,lab,1Mbit,20ms,,\n";
    return path;
  }
};

TEST_F(OfflinePlanTest, PlansWithoutACoordinatorAndSaysWhatWouldBuyWhat) {
  std::ofstream(dir_ + "/hosts.csv") << "host,gflops,memory\nlab,0.001,1GiB\nhome,0.001,1GiB\n";
  const Result plan = Plan({"--topology", Links(), "--hosts", dir_ + "/hosts.csv"});
  EXPECT_EQ(plan.code, kExitOk) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("Plan of job bible: 2 stages"), HasSubstr("lab"),
                              HasSubstr("nothing was measured"), HasSubstr(" by the table, "),
                              Not(HasSubstr(" measured, ")), HasSubstr("no file of "),
                              Not(HasSubstr("does not list")),
                              HasSubstr("In a day of training all links together carry "),
                              HasSubstr("IF THERE WERE"), HasSubstr("twice as fast")));
}

TEST_F(OfflinePlanTest, ATableOfAnyHostsTakesTheirNumber) {
  EXPECT_THAT(Plan({"--topology", "slow-5mbit"}).err, HasSubstr("--nodes N"));
  const Result plan = Plan({"--topology", "slow-5mbit", "--nodes", "2"});
  EXPECT_EQ(plan.code, kExitOk) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("2 stages"));
}

TEST_F(OfflinePlanTest, OfAJobWithPhasesTheFirstIsPlannedAndSaid) {
  std::ofstream(dir_ + "/job.yaml")
      << "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4}\ndata: {path: "
         "bible.txt}\nrecipe: {global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n"
         "phases: [{steps: 5}, {steps: 5, layers: 1, heads: 1}, {steps: 5}]\n";
  const Result plan = Plan({"--topology", Links()});
  EXPECT_EQ(plan.code, kExitOk) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("warning: this is phase 1 of 3 alone"));
}

TEST_F(OfflinePlanTest, JsonHasTheReplyAndTheChanges) {
  const Result plan =
      Plan({"--topology", Links(), "--gflops", "0.001", "--memory", "1GiB", "--json"});
  ASSERT_EQ(plan.code, kExitOk) << plan.err;
  const nlohmann::json json = nlohmann::json::parse(plan.out);
  EXPECT_GT(json["plan"]["predicted_step_s"].get<double>(), 0);
  EXPECT_GT(json["bytes_a_day"].get<double>(), 0);
  ASSERT_FALSE(json["what_if"].empty());
  EXPECT_GT(json["what_if"][0]["step_s"].get<double>(), 0);
}

TEST_F(OfflinePlanTest, WhatIsWrongIsRefused) {
  EXPECT_EQ(Plan({"--gflops", "5"}).code, kExitUsage) << "without --topology";
  EXPECT_THAT(Plan({"--topology", Links(), "--memory", "lots"}).err,
              HasSubstr("--memory 'lots' is not a size such as 16GiB"));
  EXPECT_THAT(Plan({"--topology", Links(), "--resume"}).err, HasSubstr("without a coordinator"));
  const Result no_preset = Plan({"--topology", "nowhere"});
  EXPECT_THAT(no_preset.err, HasSubstr("--topology: no preset 'nowhere'; there are: "));
  EXPECT_THAT(no_preset.err, Not(HasSubstr("\n\n")));
  const Result no_table = Plan({"--topology", dir_ + "/none.csv"});
  EXPECT_NE(no_table.code, kExitOk);
  EXPECT_THAT(no_table.err, HasSubstr("none.csv"));
  const Result no_hosts = Plan({"--topology", Links(), "--hosts", dir_ + "/none.csv"});
  EXPECT_NE(no_hosts.code, kExitOk);
  EXPECT_THAT(no_hosts.err, HasSubstr("none.csv"));
  const Result small = Plan({"--topology", Links(), "--memory", "1KiB"});
  EXPECT_NE(small.code, kExitOk);
  EXPECT_THAT(small.err, HasSubstr("may use 1.00 KiB"));
}

}  // namespace
}  // namespace isthmus::cli
