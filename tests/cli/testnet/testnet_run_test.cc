// What `testnet` refuses before it starts anything. Whole runs are in tests/e2e.
#include "coordinator/cli/testnet/testnet_run.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

int RunWith(const TestnetOptions& options, std::string* err) {
  char* text = nullptr;
  size_t size = 0;
  FILE* file = open_memstream(&text, &size);
  Console console(file, file);
  const int code = RunTestnet(options, &console);
  std::fclose(file);
  err->assign(text, size);
  std::free(text);
  return code;
}

TEST(TestnetRun, RefusesBeforeItStarts) {
  const std::string job = testing::TempDir() + "/isthmus_testnet_run_test.yaml";
  std::ofstream(job) << "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4}\n"
                        "data: {path: bible.txt}\nrecipe: {steps: 10, global_batch: 4, "
                        "micro_batch: 2, learning_rate: 1e-3}\n";
  TestnetOptions options;
  options.job_file = job;
  options.data_dir = "/nonexistent";
  std::string err;
  EXPECT_EQ(RunWith(options, &err), kExitUsage);
  EXPECT_THAT(err, HasSubstr("--loss, --uplink, --downlink (isthmus-wan"));
  options.nodes = 2;
  options.rate = "20Mbit";
  const int code = RunWith(options, &err);
  if (geteuid() != 0) {
    EXPECT_EQ(code, kExitMachine);
    EXPECT_THAT(err, HasSubstr("needs root"));
  } else if (access("/dev/net/tun", R_OK | W_OK) != 0) {
    EXPECT_EQ(code, kExitMachine);
    EXPECT_THAT(err, HasSubstr("/dev/net/tun"));
  } else {
    EXPECT_EQ(code, kExitUsage);
    EXPECT_THAT(err, HasSubstr("/nonexistent/bible.txt"));
  }
  options.job_file = "/nonexistent.yaml";
  EXPECT_EQ(RunWith(options, &err), kExitUsage);
  std::remove(job.c_str());
}

}  // namespace
}  // namespace isthmus::cli
