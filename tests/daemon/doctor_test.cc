#include "daemon/doctor.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "daemon/flags.h"
#include "daemon/state/identity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

using testing::HasSubstr;

const Finding& Of(const std::vector<Finding>& findings, const std::string& what) {
  const auto it = std::find_if(findings.begin(), findings.end(),
                               [&](const Finding& f) { return f.what == what; });
  EXPECT_NE(it, findings.end()) << what;
  return *it;
}

TEST(Doctor, LooksAtAllThatADaemonNeeds) {
  const TempDirectory dir;
  DaemonOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "192.0.2.1:7081";      // not ours
  options.coordinator = "127.0.0.1:1";  // nobody listens
  options.state_dir = dir.path() + "/state";
  options.data_dir = dir.path();
  std::vector<Finding> findings = Examine(options, absl::Milliseconds(100));
  EXPECT_EQ(Of(findings, "--listen").level, Finding::kOk);
  EXPECT_EQ(Of(findings, "--http").level, Finding::kFail);
  EXPECT_EQ(Of(findings, "coordinator").level, Finding::kFail);
  EXPECT_THAT(Of(findings, "coordinator").cure, HasSubstr("--listen is not 127.0.0.1"));
  EXPECT_EQ(Of(findings, "--data-dir").level, Finding::kWarn);  // empty
  EXPECT_THAT(Of(findings, "disk").text, HasSubstr(options.state_dir));
  Of(findings, "memory");
  Of(findings, "open files");
  Of(findings, "threads");
  Of(findings, "clock");

  std::ofstream(dir.path() + "/text.txt") << "text";
  options.advertise = "127.0.0.1:7071";
  options.http = "";
  findings = Examine(options, absl::Milliseconds(100));
  EXPECT_EQ(Of(findings, "--data-dir").level, Finding::kOk);
  EXPECT_EQ(Of(findings, "address for others").level, Finding::kWarn);
  EXPECT_THAT(Of(findings, "address for others").cure, HasSubstr("--advertise"));
}

TEST(Doctor, AStateDirectoryThatAnotherDaemonHasStandsInTheWay) {
  const TempDirectory dir;
  DaemonOptions options;
  options.listen = "127.0.0.1:0";
  options.coordinator = "127.0.0.1:1";
  options.state_dir = dir.path() + "/state";
  options.data_dir = dir.path();
  const auto named = [&] {
    const std::vector<Finding> findings = Examine(options, absl::Milliseconds(1));
    return std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
      return f.what == "--state-dir" && f.level == Finding::kFail &&
             f.text.find("in use by another daemon (process ") != std::string::npos;
    });
  };
  EXPECT_FALSE(named());
  EXPECT_FALSE(std::filesystem::exists(options.state_dir)) << "the examination makes none";
  const auto other = StateDir::Open(options.state_dir);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(named());
}

// It ended the whole report, with one line.
TEST(Doctor, ADataDirectoryThatIsNoneIsOneFindingOfAll) {
  const TempDirectory dir;
  std::ofstream(dir.path() + "/file") << "text";
  DaemonOptions options;
  options.listen = "127.0.0.1:0";
  options.coordinator = "127.0.0.1:1";
  options.state_dir = dir.path() + "/state";
  for (const auto& [name, words] : {std::pair("nodir", "No such file"), {"file", "is a file"}}) {
    options.data_dir = dir.path() + "/" + name;
    EXPECT_TRUE(CheckFlags(options).ok()) << "the examination begins";
    const std::vector<Finding> findings = Examine(options, absl::Milliseconds(100));
    EXPECT_EQ(Of(findings, "--data-dir").level, Finding::kFail);
    EXPECT_THAT(Of(findings, "--data-dir").text, HasSubstr(words));
    Of(findings, "memory");
  }
}

TEST(Doctor, AnAddressThatWasFoundOutIsNamed) {
  EXPECT_EQ(JudgeAdvertised("10.0.0.3:7071", false, false).level, Finding::kOk);
  EXPECT_THAT(JudgeAdvertised("10.0.0.3:7071", false, false).text, HasSubstr("--advertise"));
  EXPECT_EQ(JudgeAdvertised("b.example:7071", false, true).text, "b.example:7071");
}

TEST(Doctor, ASlowMatrixLibraryIsAWarningWithItsCure) {
  EXPECT_EQ(JudgeBlas(5e10, 2, "cpu", "").level, Finding::kOk);
  EXPECT_THAT(JudgeBlas(5e10, 2, "cpu", "").text, HasSubstr("50 GFLOP/s on cpu with 2 threads"));
  EXPECT_EQ(JudgeBlas(2e9, 2, "cpu", "install a BLAS").level, Finding::kWarn);
  EXPECT_EQ(JudgeBlas(2e9, 2, "cpu", "install a BLAS").cure, "install a BLAS");
}

}  // namespace
}  // namespace isthmus::daemon
