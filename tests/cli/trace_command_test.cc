#include "coordinator/cli/trace_command.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/view/chrome_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/app_fixture.h"
#include "tests/cli/view/trace_fixture.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

class TraceTest : public AppTest {
 protected:
  void SetUp() override {
    AppTest::SetUp();
    fake_.trace = TwoStageTrace();
  }
  std::string path() const { return dir_ + "/steps.json"; }
  std::string Written() const {
    std::ifstream in(path());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
};

TEST_F(TraceTest, WritesTheFileAndSaysWhatTheTimeWentInto) {
  const Result result = Run({"trace", "bible", "--output", path()});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(Written(), ChromeTrace(TwoStageTrace()));
  EXPECT_THAT(result.out, HasSubstr("stage 0 on n1: 10.0 ms a step: compute 46 %"));
  EXPECT_THAT(result.out, HasSubstr("steps.json: step 7 of bible-1; clocks agree to"));
  EXPECT_EQ(fake_.asked().trace_request.job(), "bible");
  EXPECT_EQ(fake_.asked().trace_request.steps(), 1);
}

TEST_F(TraceTest, DoesNotReplaceAFileUnasked) {
  std::ofstream(path()) << "mine";
  const Result refused = Run({"trace", "bible", "--output", path()});
  EXPECT_EQ(refused.code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("steps.json exists; --force replaces it"));
  EXPECT_EQ(Written(), "mine");
  EXPECT_EQ(fake_.asked().trace_request.steps(), 0) << "no step is traced in vain";
  EXPECT_EQ(Run({"trace", "bible", "--output", path(), "--force"}).code, kExitOk);
  EXPECT_EQ(Written(), ChromeTrace(TwoStageTrace()));
  EXPECT_EQ(Run({"trace", "bible", "--output", dir_, "--force"}).code, kExitUsage);
}

TEST_F(TraceTest, TheDefaultNameIsTheJobs) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_);
  const Result result = Run({"trace", "bible", "--json"});
  std::filesystem::current_path(before);
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/bible-1-trace.json"));
  EXPECT_EQ(nlohmann::json::parse(result.out)["file"], "bible-1-trace.json");
}

TEST_F(TraceTest, WhatIsMissingIsAWarningAndOne) {
  fake_.trace.mutable_traces()->RemoveLast();
  const Result result = Run({"trace", "bible", "--output", path(), "--steps", "2"});
  EXPECT_EQ(result.code, kExitFailure);
  EXPECT_THAT(result.err, HasSubstr("warning: stage 1 on n\"2 told of no step"));
  EXPECT_THAT(result.err, HasSubstr("warning: 1 of 2 steps"));
  EXPECT_FALSE(Written().empty()) << "of the others it is of use";
}

TEST_F(TraceTest, RefusalsKeepTheirWords) {
  fake_.refuse = {grpc::StatusCode::FAILED_PRECONDITION, "job bible-1 is paused"};
  const Result result = Run({"trace", "bible", "--output", path()});
  EXPECT_EQ(result.code, kExitRefused);
  EXPECT_THAT(result.err, HasSubstr("job bible-1 is paused"));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(Run({"trace", "bible", "--steps", "101"}).code, kExitUsage);
}

}  // namespace
}  // namespace isthmus::cli
