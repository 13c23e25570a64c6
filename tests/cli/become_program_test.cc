#include "coordinator/cli/become_program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

TEST(BecomeProgram, SaysWhatIsMissing) {
  char* text = nullptr;
  size_t size = 0;
  FILE* err = open_memstream(&text, &size);
  Console console(stdout, err);
  EXPECT_NE(BecomeProgram("isthmus-of-no-kind", {}, &console), kExitOk);
  std::fclose(err);
  EXPECT_THAT(std::string(text, size), HasSubstr("isthmus-of-no-kind"));
  std::free(text);
}

TEST(BecomeProgram, HasTheArgumentsAndTheExitCodeOfTheOther) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Console console(stdout, stderr);
    _exit(BecomeProgram("sh", {"-c", "exit 42"}, &console));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(BecomeProgram, TheOtherKnowsWhatWasTyped) {
  const TempDirectory folder;  // on PATH, with a program of that name
  ASSERT_EQ(symlink("/bin/sh", (folder.path() + "/isthmus-shell").c_str()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Console console(stdout, stderr);
    setenv("PATH", folder.path().c_str(), 1);
    _exit(BecomeProgram(
        "isthmus-shell",
        {"-c",
         "typed=$(/bin/cat /proc/$$/cmdline | "
         "/usr/bin/tr '\\0' '|'); case $typed in 'isthmus shell|'*) exit 42 ;; esac; exit 7"},
        &console));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(HelpOf, OfAnUnknownProgramNamesThoseThatAre) {
  EXPECT_THAT(std::string(HelpOf("frobnicate").status().message()),
              HasSubstr("isthmusd, isthmus-coordinator"));
}

}  // namespace
}  // namespace isthmus::cli
