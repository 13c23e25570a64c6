#include "deploy/testnet/run_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace isthmus::testnet {
namespace {

using ::testing::HasSubstr;

class RunDirTest : public ::testing::Test {
 protected:
  RunDirTest() : path_(::testing::TempDir() + "wan-run-dir-" + std::to_string(getpid())) {}
  ~RunDirTest() override { std::filesystem::remove_all(path_); }
  const std::string path_;
};

WanInfo Info() {
  WanInfo info;
  info.pid = 42;
  info.mtu = 9000;
  info.seed = 7;
  info.scheduling = "rr";
  info.nodes = {{"a", "10.77.0.1", "/proc/42/fd/5"}, {"b", "10.77.0.2", "/proc/42/fd/7"}};
  return info;
}

TEST_F(RunDirTest, InfoReadsBackToTheSame) {
  absl::StatusOr<WanInfo> back = ParseWanInfo(FormatWanInfo(Info()), "x");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FormatWanInfo(*back), FormatWanInfo(Info()));
  for (const char* bad : {"", "{", "[]", "{\"pid\": \"x\"}", "{\"pid\": 1}"}) {
    EXPECT_FALSE(ParseWanInfo(bad, "x").ok()) << bad;
  }
}

TEST_F(RunDirTest, TheReaderKnowsWhetherTheEmulatorLives) {
  EXPECT_EQ(ReadWanInfo(path_).status().code(), absl::StatusCode::kNotFound);
  {
    absl::StatusOr<RunDir> dir = RunDir::Take(path_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    EXPECT_EQ(ReadWanInfo(path_).status().code(), absl::StatusCode::kNotFound);  // not ready yet
    ASSERT_TRUE(dir->WriteFile("wan.json", FormatWanInfo(Info())).ok());
    absl::StatusOr<WanInfo> info = ReadWanInfo(path_);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->nodes.size(), 2u);
    setenv("ISTHMUS_WAN_DIR", path_.c_str(), 1);
    EXPECT_TRUE(ReadWanInfo("").ok());
    unsetenv("ISTHMUS_WAN_DIR");
    EXPECT_EQ(ReadWanInfo("").status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(RunDir::Take(path_).status().code(), absl::StatusCode::kAlreadyExists);
  }
  // Gone without a goodbye: its file is still there, its lock is not.
  EXPECT_EQ(ReadWanInfo(path_).status().code(), absl::StatusCode::kUnavailable);
  absl::StatusOr<RunDir> next = RunDir::Take(path_);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(std::filesystem::exists(path_ + "/wan.json"));
}

TEST_F(RunDirTest, ADirectoryOfItsOwnMakingVanishesAnotherKeepsTheCounters) {
  absl::StatusOr<RunDir> temporary = RunDir::Take("");
  ASSERT_TRUE(temporary.ok()) << temporary.status();
  const std::string made = temporary->path();
  ASSERT_TRUE(temporary->WriteFile("wan-stats.json", "{}").ok());
  temporary->Remove();
  EXPECT_FALSE(std::filesystem::exists(made));

  absl::StatusOr<RunDir> given = RunDir::Take(path_);
  ASSERT_TRUE(given.ok()) << given.status();
  ASSERT_TRUE(given->WriteFile("wan.json", "{}").ok());
  ASSERT_TRUE(given->WriteFile("wan-stats.json", "{}").ok());
  given->Remove();
  EXPECT_FALSE(std::filesystem::exists(path_ + "/wan.json"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/wan-stats.json"));
}

}  // namespace
}  // namespace isthmus::testnet
