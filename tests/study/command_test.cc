// The command line of isthmus-study, with the fake stage.
#include "worker/study/command.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/temp_directory.h"
#include "tests/worker/fake_stage.h"

namespace isthmus::study {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kJob[] = R"({"name": "fake", "seed": "1",
  "model": {"layers": 6, "hidden": 4, "heads": 1, "context": 3, "vocabulary": 256},
  "data": {"path": "text.txt"},
  "recipe": {"steps": "6", "global_batch": 4, "micro_batch": 2, "learning_rate": 0.001,
             "eval_samples": 2}})";

class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    std::ofstream(dir_ + "/job.json") << kJob;
    std::ofstream(dir_ + "/text.txt") << std::string(2000, 'a');
  }

  // The exit code; what it printed is in out_ and err_.
  int Run(std::vector<std::string> arguments, bool paths = true) {
    arguments.insert(arguments.begin(), "isthmus-study");
    if (paths) {
      for (const std::string& more : {dir_ + "/job.json", "--data-dir=" + dir_,
                                      "--out=" + dir_ + "/out", std::string("--seeds=1")})
        arguments.push_back(more);
    }
    std::vector<const char*> argv;
    for (const std::string& a : arguments) argv.push_back(a.c_str());
    char *out_text = nullptr, *err_text = nullptr;
    size_t out_size = 0, err_size = 0;
    FILE* out = open_memstream(&out_text, &out_size);
    FILE* err = open_memstream(&err_text, &err_size);
    Engine engine;
    engine.stages = [this](const std::string&, int) { return worker::FakeStages(hook_); };
    const int code = RunCommand(static_cast<int>(argv.size()), argv.data(), engine, out, err);
    std::fclose(out);
    std::fclose(err);
    out_.assign(out_text, out_size);
    err_.assign(err_text, err_size);
    std::free(out_text);
    std::free(err_text);
    return code;
  }

  worker::StageHook hook_;
  const TempDirectory directory_;
  const std::string dir_ = directory_.path();
  std::string out_, err_;
};

TEST_F(CommandTest, HelpTeaches) {
  EXPECT_EQ(Run({"--help"}, false), 0);
  for (const char* word : {"Examples:", "Exit codes:", "--codec", "--quick", "Ctrl-C"})
    EXPECT_THAT(out_, HasSubstr(word));
  EXPECT_EQ(Run({"--version"}, false), 0);
  EXPECT_THAT(out_, HasSubstr("isthmus-study "));
}

TEST_F(CommandTest, BadInputNamesThingPlaceAndFix) {
  const auto expect = [&](std::vector<std::string> arguments, const char* text, bool paths = true) {
    EXPECT_EQ(Run(std::move(arguments), paths), 2);
    EXPECT_THAT(err_, HasSubstr(text));
    EXPECT_EQ(out_, "");
    EXPECT_FALSE(std::filesystem::exists(dir_ + "/out"));
  };
  expect({"--codec", "quant(4) / qaunt(8)"},
         "--codec 'quant(4) / qaunt(8)': backward: codec 'qaunt(8)', column 1: expected a codec");
  expect({"--boundaries", "early,mid"}, "'mid' is no choice of boundaries; they are early, late");
  expect({"--steps", "0"}, "--steps");
  expect({"--stages", "7"}, "strategy.stages: '7' is not allowed; it must be at most");
  expect({"--passes", "nan"}, "--passes: 'nan' is no number from 0.01 to 1000000");
  expect({"--delay", "nan"}, "--delay: 'nan' is no number from 0 to 10000");
  expect({"--nonsense"}, "--nonsense");
  expect({"/nonexistent.json"}, "can't read /nonexistent.json: No such file or directory", false);
  expect({"/x/job.yaml"}, "`isthmus study /x/job.yaml` reads YAML", false);
  expect({"--data-dir=/nonexistent"}, "deploy/fetch-data.sh", false);
  std::ofstream(dir_ + "/bad.json") << "{\"layers\": 3}";
  expect({dir_ + "/bad.json"}, "not a job as JSON", false);
}

TEST_F(CommandTest, AGridEndsInATableAndASecondRunPrintsTheSame) {
  const std::vector<std::string> arguments = {"--codec=fp16 / fp16", "--codec=bf16",
                                              "--rank-samples=0", "--boundaries=all"};
  ASSERT_EQ(Run(arguments), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("fp16 / fp16"));
  EXPECT_THAT(out_, HasSubstr("bf16 / none"));
  EXPECT_THAT(err_, HasSubstr("3/3 cells"));
  EXPECT_THAT(err_, HasSubstr("/out/study.svg"));
  const std::string table = out_;
  ASSERT_EQ(Run(arguments), 0) << err_;
  EXPECT_EQ(out_, table);
  EXPECT_THAT(err_, Not(HasSubstr("cells")));
  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  ASSERT_EQ(Run(as_json), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["rows"].size(), 3u);
}

TEST_F(CommandTest, ACellThatFailsIsCode1) {
  hook_ = [](int, int64_t, const std::string& operation) -> absl::StatusOr<worker::StageFault> {
    worker::StageFault fault;
    fault.norm_is_infinite = operation == "norm";
    return fault;
  };
  EXPECT_EQ(Run({"--codec=fp16", "--rank-samples=0", "--boundaries=all", "--steps=12"}), 1);
  EXPECT_THAT(err_, HasSubstr("2 cells failed; the same command tries them again"));
  EXPECT_THAT(out_, HasSubstr("not run: seed 1 failed: "));
}

TEST_F(CommandTest, WhatTheMachineRefusesIsCode3) {
  std::filesystem::create_directories(dir_ + "/out/cells.jsonl");  // not a file
  EXPECT_EQ(Run({"--codec=fp16", "--rank-samples=0"}), 3);
  EXPECT_THAT(err_, HasSubstr("cells.jsonl"));
}

}  // namespace
}  // namespace isthmus::study
