#include "coordinator/cli/offline/offline_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

// What the flags make of a command line; or the refusal.
std::string Parse(std::vector<std::string> arguments, OfflineOptions* options) {
  CLI::App app("plan");
  AddOfflineFlags(&app, options);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(OfflineFlags, FiguresOfHosts) {
  OfflineOptions options;
  EXPECT_EQ(
      Parse({"--topology", "regions", "--hosts", "h.csv", "--gflops", "12.5", "--memory", "16GiB"},
            &options),
      "");
  EXPECT_EQ(options.links, "regions");
  EXPECT_EQ(options.hosts, "h.csv");
  EXPECT_EQ(options.gflops, 12.5);
  EXPECT_EQ(options.memory, "16GiB");
}

TEST(OfflineFlags, FiguresWithoutATopologyAreRefused) {
  for (const std::vector<std::string>& alone : std::vector<std::vector<std::string>>{
           {"--hosts", "h.csv"}, {"--gflops", "5"}, {"--memory", "1GiB"}}) {
    OfflineOptions options;
    EXPECT_THAT(Parse(alone, &options), HasSubstr("--topology")) << alone[0];
  }
}

TEST(OfflineFlags, NoComputeIsRefused) {
  for (const char* gflops : {"0", "-1", "nan", "1e10", "fast"}) {
    OfflineOptions options;
    EXPECT_NE(Parse({"--topology", "regions", "--gflops", gflops}, &options), "") << gflops;
  }
}

}  // namespace
}  // namespace isthmus::cli
