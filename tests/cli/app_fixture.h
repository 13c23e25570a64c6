// The whole command line against a fake coordinator: a directory with a job file, what a command
// prints and its exit code. Thread: one owner.
#ifndef ISTHMUS_TESTS_CLI_APP_FIXTURE_H_
#define ISTHMUS_TESTS_CLI_APP_FIXTURE_H_

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/app.h"
#include "coordinator/cli/view/console.h"
#include "gtest/gtest.h"
#include "tests/cli/fake_coordinator.h"

namespace isthmus::cli {

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

inline Result RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "isthmus");
  std::vector<const char*> argv;
  for (const std::string& a : arguments) argv.push_back(a.c_str());
  char* text[2];
  size_t size[2];
  FILE* out = open_memstream(&text[0], &size[0]);
  FILE* err = open_memstream(&text[1], &size[1]);
  Console console(out, err);
  Result result;
  result.code = RunApp(static_cast<int>(argv.size()), argv.data(), &console);
  std::fclose(out);
  std::fclose(err);
  result.out.assign(text[0], size[0]);
  result.err.assign(text[1], size[1]);
  std::free(text[0]);
  std::free(text[1]);
  return result;
}

class AppTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/isthmus_app_test.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    std::ofstream(dir_ + "/job.yaml")
        << "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4}\ndata: {path: "
           "bible.txt}\n"
           "recipe: {steps: 10, global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n";
    fake_.submitted.set_job_id("bible-1");
    fake_.status.set_job_id("bible-1");
    fake_.status.set_name("bible");
    fake_.status.set_state(JOB_RUNNING);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  Result Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--coordinator", fake_.address()});
    Result result = RunCommand(std::move(arguments));
    fake_.Settle();
    return result;
  }
  std::string Job() const { return dir_ + "/job.yaml"; }

  // Records of steps [first, end) in one reply, with the state after them.
  static WatchReply Records(int first, int end, JobState state) {
    WatchReply reply;
    for (int i = first; i < end; ++i) {
      JobRecord* record = reply.add_records();
      record->set_step(i);
      record->set_loss(5.5 - 0.1 * i);
      record->set_committed(true);
      record->set_tokens(100);
      record->set_step_s(0.1);
    }
    JobStatus* status = reply.mutable_status();
    status->set_job_id("bible-1");
    status->set_name("bible");
    status->set_state(state);
    status->set_step(end);
    status->set_steps(10);
    status->set_first_loss(5.5);
    status->set_tokens_per_s(1000);
    status->set_loss(5.5 - 0.1 * (end - 1));
    return reply;
  }

  FakeCoordinator fake_;
  std::string dir_;
};

}  // namespace isthmus::cli

#endif  // ISTHMUS_TESTS_CLI_APP_FIXTURE_H_
