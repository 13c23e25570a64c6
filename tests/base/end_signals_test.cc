#include "base/end_signals.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace isthmus {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);  // ends by the signal, not by time

// Sends `signal` to a process that has an EndSignals; the signal that it saw, 0: none, -1: it was
// ended by it. `earlier_thread`: one that was there before, as a library's.
int SeenInAChild(int signal, bool ignored, bool earlier_thread) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
    std::thread library;
    if (earlier_thread)
      library = std::thread([] {
        for (;;) pause();
      });
    EndSignals signals;
    if (signals.pending()) _exit(98);
    kill(getpid(), signal);
    while (!ignored && !signals.pending()) std::this_thread::yield();
    if (ignored && signals.pending()) _exit(99);
    const int seen = signals.WaitFor(ignored ? absl::ZeroDuration() : kLong);
    _exit(seen > 0 ? seen : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(EndSignals, ThreeSignalsAskForAnEnd) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    EXPECT_EQ(SeenInAChild(signal, false, false), signal) << signal;
}

// OpenBLAS starts threads before main: they have the signals open, and the default action would end
// the process there.
TEST(EndSignals, AThreadThatWasThereBeforeHandsThemOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    EXPECT_EQ(SeenInAChild(signal, false, true), signal) << signal;
}

TEST(EndSignals, AnIgnoredHangupStaysIgnored) {
  EXPECT_EQ(SeenInAChild(SIGHUP, true, false), 0);
  EXPECT_EQ(SeenInAChild(SIGHUP, true, true), 0);
}

TEST(EndSignals, MaskAndHandlersComeBack) {
  sigset_t start, during, after;
  pthread_sigmask(SIG_BLOCK, nullptr, &start);
  {
    EndSignals signals;
    pthread_sigmask(SIG_BLOCK, nullptr, &during);
    EXPECT_EQ(signals.WaitFor(absl::ZeroDuration()), 0);
  }
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(sigismember(&during, SIGTERM), 1);
  EXPECT_EQ(sigismember(&after, SIGTERM), sigismember(&start, SIGTERM));
  struct sigaction now {};
  sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace isthmus
