#include "coordinator/cli/view/console.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

TEST(Console, FailPrintsHarmlessTextAndGivesTheCode) {
  char* text = nullptr;
  size_t size = 0;
  FILE* err = open_memstream(&text, &size);
  Console console(stdout, err);
  EXPECT_EQ(console.Fail(absl::NotFoundError("no job '\x1b[2J'")), kExitUsage);
  std::fclose(err);
  EXPECT_EQ(std::string(text, size), "isthmus: no job '?[2J'\n");
  std::free(text);
}

TEST(Console, LostOutputIsNoSuccess) {
  FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  FILE* err = std::tmpfile();
  Console lost(full, err);
  EXPECT_EQ(lost.Finish(kExitOk), kExitOk) << "nothing was printed";
  lost.Out("a job file\n");
  EXPECT_EQ(lost.Finish(kExitOk), kExitFailure);
  EXPECT_EQ(lost.Finish(kExitRefused), kExitRefused) << "the first cause counts";
  std::fclose(full);
  Console good(err, err);
  good.Out("text");
  EXPECT_EQ(good.Finish(kExitOk), kExitOk);
  std::fclose(err);
}

TEST(Console, AFileIsNoTerminal) {
  FILE* file = std::tmpfile();
  const Terminal terminal = TerminalOf(file);
  EXPECT_FALSE(terminal.interactive);
  EXPECT_EQ(terminal.width, 80u);
  std::fclose(file);
}

TEST(Console, ExitCodes) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::DataLossError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), 3);
  EXPECT_EQ(ExitCodeFor(Unreachable(absl::UnavailableError(""))), 4);
  EXPECT_EQ(ExitCodeFor(Unreachable(absl::DeadlineExceededError(""))), 4);
  EXPECT_EQ(ExitCodeFor(absl::FailedPreconditionError("")), 5);
  EXPECT_EQ(ExitCodeFor(absl::AlreadyExistsError("")), 5);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 7);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), 7);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), 130);
}

TEST(Console, OneTableOfExitCodesForHelpAndReadme) {
  std::ifstream file(std::string(ISTHMUS_SOURCE_DIR) + "/coordinator/cli/README.md");
  const std::string readme((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  for (const ExitMeaning& each : ExitCodes()) {
    EXPECT_THAT(readme, HasSubstr(absl::StrCat("| ", each.code, " | ", each.meaning, " |\n")));
    EXPECT_THAT(ExitCodeHelp(), HasSubstr(absl::StrCat(each.code, "  ", each.meaning, "\n")));
  }
}

}  // namespace
}  // namespace isthmus::cli
