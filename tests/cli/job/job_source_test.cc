// Where jobs come from and what is said of them without a coordinator: standard input, `isthmus
// check`, records as CSV.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/job/check.h"
#include "coordinator/cli/job/record_csv.h"
#include "coordinator/cli/job/standard_input.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/model/small_gpt2.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kGood[] =
    "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4}\ndata: {path: bible.txt}\n"
    "recipe: {steps: 10, global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n";

// Standard input is a pipe with `text` while this lives.
class PipedInput {
 public:
  explicit PipedInput(const std::string& text) : old_(dup(STDIN_FILENO)) {
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], text.data(), text.size()) < 0) abort();
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
  }
  ~PipedInput() {
    dup2(old_, STDIN_FILENO);
    close(old_);
  }

 private:
  const int old_;
};

struct Result {
  int code;
  std::string out, err;
};

Result Check(const JobSource& source, bool json = false) {
  char* text[2];
  size_t size[2];
  FILE* out = open_memstream(&text[0], &size[0]);
  FILE* err = open_memstream(&text[1], &size[1]);
  Console console(out, err);
  Result result{RunCheck(source, json, &console), "", ""};
  std::fclose(out);
  std::fclose(err);
  result.out.assign(text[0], size[0]);
  result.err.assign(text[1], size[1]);
  std::free(text[0]);
  std::free(text[1]);
  return result;
}

TEST(StandardInput, CanBeReadAgain) {
  const PipedInput input("some text");
  EXPECT_EQ(ReadStandardInput(100).value(), "some text");
  EXPECT_EQ(ReadStandardInput(100).value(), "some text");
  EXPECT_EQ(ReadStandardInput(4).value(), "some");
}

TEST(StandardInput, IsAJobFile) {
  const PipedInput input(kGood);
  JobSource source("-");
  source.settings = {"recipe.steps=3"};
  EXPECT_EQ(ReadJobFile(source)->recipe().steps(), 3);
  EXPECT_EQ(ReadJobFile(source)->name(), "bible");
  source.settings = {};
  EXPECT_EQ(ReadJobFile(source)->recipe().steps(), 10);
}

TEST(StandardInput, ErrorsNameIt) {
  const PipedInput input("name: x\nfrob: 1\n");
  EXPECT_THAT(std::string(ReadJobFile("-").status().message()), HasSubstr("<stdin>:2:1: frob"));
}

TEST(Check, AGoodFileIsNamed) {
  const PipedInput input(kGood);
  const Result result = Check("-");
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.out, HasSubstr("no errors; job bible, 2 layers x 8"));
}

TEST(Check, EveryErrorHasItsPlace) {
  const TempDirectory dir;
  const std::string path = dir.path() + "/job.yaml";
  std::ofstream(path)
      << "name: bible\nmodel: {layers: x, hidden: 8, heads: 2, context: 4}\nfrob: 1\n"
         "recipe: {steps: 0, global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n";
  const Result result = Check(path, true);
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr(path + ":2:17: model.layers"));
  EXPECT_THAT(result.err, HasSubstr(path + ":3:1: frob"));
  EXPECT_THAT(result.err, HasSubstr(path + ":4:17: recipe.steps"));
  EXPECT_THAT(result.err, HasSubstr("data.path: missing"));
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["valid"], false);
  EXPECT_EQ(json["errors"].size(), 4u);
  EXPECT_EQ(json["more_errors"], 0);
  EXPECT_EQ(json["errors"][0]["line"], 1);  // data, which is not there
  EXPECT_EQ(json["errors"][1]["line"], 2);
}

TEST(Check, ErrorsThatAreNotShownAreCounted) {
  std::string text = kGood;
  for (int i = 0; i < 30; ++i) text += "frobnicate" + std::to_string(i) + ": 1\n";
  const PipedInput input(text);
  const Result result = Check("-", true);
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, testing::EndsWith("\nand 10 more errors\n"));
  EXPECT_EQ(nlohmann::json::parse(result.out)["errors"].size(), 20u);
  EXPECT_EQ(nlohmann::json::parse(result.out)["more_errors"], 10);
  EXPECT_THAT(std::string(ReadJobFile("-").status().message()),
              testing::EndsWith("\nand 10 more errors"));
}

// Opening a FIFO would wait for its writer.
TEST(Check, WhatIsNotAFileIsRefusedAtOnce) {
  const TempDirectory dir;
  const std::string fifo = dir.path() + "/job.yaml";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Result result = Check(fifo);
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("the job file: can't read " + fifo +
                                    ": it is not a regular file; '-' in its place reads standard"));
  EXPECT_EQ(ReadJobFile(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Check(dir.path() + "/none").code, kExitUsage);
}

TEST(Check, ASetThatIsWrongIsNamed) {
  const PipedInput input(kGood);
  JobSource source("-");
  source.settings = {"recipe.steps=0"};
  const Result result = Check(source, true);
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_EQ(nlohmann::json::parse(result.out)["errors"][0]["flag"], "--set recipe.steps=0");
}

TEST(Check, TheModelToBeginFromIsRead) {
  const TempDirectory dir;
  std::ofstream(dir.path() + "/job.yaml")
      << "name: bible\nmodel:\n  {layers: 2, hidden: 8, heads: 2, "
         "context: 4, init_from: gpt2}\ndata: {path: bible.txt}\n"
         "recipe: {steps: 10, global_batch: 4, micro_batch: 2, "
         "learning_rate: 1e-3}\n";
  const Result missing = Check(dir.path() + "/job.yaml");
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_THAT(missing.err, StartsWith(dir.path() + "/job.yaml:3:"));
  EXPECT_THAT(missing.err, HasSubstr("model.init_from"));
  std::filesystem::create_directory(dir.path() + "/gpt2");
  WriteSmallGpt2(dir.path() + "/gpt2", "");
  EXPECT_EQ(Check(dir.path() + "/job.yaml").code, kExitOk);
}

TEST(Check, AFileThatIsNotThere) { EXPECT_EQ(Check("/nonexistent.yaml").code, kExitUsage); }

TEST(RecordCsv, HasEveryFieldOfARecordOnce) {
  const std::vector<std::string> names = absl::StrSplit(RecordCsvHeader(), ',');
  EXPECT_EQ(names[0], "step");
  EXPECT_EQ(names.back(), "validation_accuracy\n");
  JobRecord record;
  record.set_step(3);
  record.set_loss(2.5);
  record.set_committed(true);
  record.set_validation_loss(7);
  std::vector<std::string> values = absl::StrSplit(RecordCsv(record), ',');
  ASSERT_EQ(values.size(), names.size());
  const auto at = [&](const std::string& name) {
    return values[std::find(names.begin(), names.end(), name) - names.begin()];
  };
  EXPECT_EQ(at("step"), "3");
  EXPECT_EQ(at("loss"), "2.5");
  EXPECT_EQ(at("committed"), "1");
  EXPECT_EQ(at("validation_loss"), "");  // there was none at this step
  EXPECT_EQ(values.back(), "\n");        // nor an accuracy
  record.set_has_validation_loss(true);
  record.set_validation_accuracy(0.5);
  record.set_loss(std::numeric_limits<double>::quiet_NaN());
  values = absl::StrSplit(RecordCsv(record), ',');
  EXPECT_EQ(at("validation_loss"), "7");
  EXPECT_EQ(at("loss"), "");
  EXPECT_EQ(values.back(), "0.5\n");
}

}  // namespace
}  // namespace isthmus::cli
