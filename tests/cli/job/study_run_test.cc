// What `isthmus study` makes of its arguments. The program itself is tested in tests/study.
#include "coordinator/cli/job/study_run.h"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(StudyRun, AJobFileIsPassedOnAsJson) {
  const std::string path = testing::TempDir() + "/isthmus_study_run_test.yaml";
  std::ofstream(path) << "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4}\n"
                         "data: {path: bible.txt}\nrecipe: {steps: 1e3, global_batch: 4, "
                         "micro_batch: 2, learning_rate: 1e-3}\n";
  const auto out = StudyArguments({"--seeds", "3", path, "--out=x.yaml"});
  ASSERT_TRUE(out.ok()) << out.status();
  ASSERT_EQ(out->size(), 4u);
  EXPECT_EQ((*out)[3], "--out=x.yaml");
  EXPECT_THAT((*out)[2], StartsWith("/proc/self/fd/"));
  std::ifstream in((*out)[2]);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["recipe"]["steps"], "1000");
  EXPECT_EQ(json["model"]["layers"], 2);
  const auto set = StudyArguments({"--set", "recipe.steps=5", path, "--set=seed=7"});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->size(), 1u);
  std::ifstream changed(set->front());
  EXPECT_EQ(nlohmann::json::parse(changed)["recipe"]["steps"], "5");
  EXPECT_FALSE(StudyArguments({path, "--set", "recipe.steps=x"}).ok());
  EXPECT_FALSE(StudyArguments({path, "--set"}).ok());
  std::remove(path.c_str());
}

TEST(StudyRun, SetNeedsAJobFile) {
  EXPECT_THAT(std::string(StudyArguments({"--set", "seed=1"}).status().message()),
              HasSubstr("none is named"));
}

TEST(StudyRun, ABadJobFileIsNamed) {
  const auto out = StudyArguments({"/nonexistent.yaml"});
  EXPECT_EQ(out.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(out.status().message()), HasSubstr("/nonexistent.yaml"));
}

}  // namespace
}  // namespace isthmus::cli
