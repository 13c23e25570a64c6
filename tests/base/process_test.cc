#include "base/process.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(30);  // ends by the event, not by time

TEST(Process, ExitCodesAndSignals) {
  absl::StatusOr<Process> process = Process::Start({{"sh", "-c", "exit 7"}});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->Wait(kLong), 7);
  process = Process::Start({{"sh", "-c", "kill -9 $$"}});
  EXPECT_EQ(process->Wait(kLong), 128 + SIGKILL);
}

TEST(Process, WhatCanNotBeRunIsSaidAtOnce) {
  EXPECT_EQ(Process::Start({{"/nonexistent/program"}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Process::Start({{"/etc/passwd"}}).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Process::Start({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Process, OutputGoesToTheFile) {
  const std::string path = testing::TempDir() + "/isthmus_process_test.log";
  std::remove(path.c_str());
  ProcessOptions options;
  options.argv = {"sh", "-c", "echo out; echo err >&2"};
  options.output_file = path;
  absl::StatusOr<Process> process = Process::Start(options);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(process->Wait(kLong), 0);
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "out\nerr\n");
  std::remove(path.c_str());
}

TEST(Process, StopAsksFirstAndKillsThen) {
  absl::StatusOr<Process> polite = Process::Start({{"sleep", "1000"}});
  EXPECT_EQ(polite->Stop(kLong), 128 + SIGTERM);
  ProcessOptions options;
  options.argv = {"sh", "-c", "trap '' TERM; echo ready; while true; do sleep 1; done"};
  options.output_file = testing::TempDir() + "/isthmus_process_stubborn.log";
  std::remove(options.output_file.c_str());
  absl::StatusOr<Process> stubborn = Process::Start(options);
  ASSERT_TRUE(stubborn.ok()) << stubborn.status();
  for (std::string word; word != "ready";) {  // its word that it ignores SIGTERM from now on
    ASSERT_FALSE(stubborn->Wait(absl::Milliseconds(10)).has_value());
    std::ifstream(options.output_file) >> word;
  }
  EXPECT_EQ(stubborn->Stop(absl::Milliseconds(300)), 128 + SIGKILL);
}

TEST(Process, TheDestructorReaps) {
  pid_t pid = 0;
  {
    absl::StatusOr<Process> process = Process::Start({{"sleep", "1000"}});
    pid = process->pid();
    Process moved = *std::move(process);
    EXPECT_EQ(moved.pid(), pid);
  }
  EXPECT_EQ(kill(pid, 0), -1);  // gone, not a zombie
}

TEST(Process, BlockedSignalsAreNotInherited) {
  sigset_t set;
  sigset_t old;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, &old);
  absl::StatusOr<Process> process = Process::Start({{"sleep", "1000"}});
  sigprocmask(SIG_SETMASK, &old, nullptr);
  EXPECT_EQ(process->Stop(kLong), 128 + SIGTERM);
}

TEST(Process, RunAndCapture) {
  EXPECT_EQ(RunAndCapture({"echo", "hello"}, kLong).value(), "hello\n");
  const absl::Status usage =
      RunAndCapture({"sh", "-c", "echo wrong table >&2; exit 2"}, kLong).status();
  EXPECT_EQ(usage.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(usage.message()), HasSubstr("wrong table"));
  EXPECT_EQ(RunAndCapture({"sh", "-c", "exit 1"}, kLong).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(RunAndCapture({"sleep", "1000"}, absl::Milliseconds(50)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(Process, FindProgram) {
  EXPECT_THAT(FindProgram("sh").value(), testing::EndsWith("/sh"));
  EXPECT_THAT(FindProgram("cli_test").value(),
              testing::EndsWith("/cli_test"));  // beside this program
  EXPECT_EQ(FindProgram("no-such-program-here").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace isthmus
