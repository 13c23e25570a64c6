#include "base/end_signals.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"

namespace isthmus {
namespace {

std::atomic<int> write_end{-1};

void HandOn(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe holds signals enough.
  [[maybe_unused]] const ssize_t written = write(write_end, &byte, 1);
  errno = error;
}

}  // namespace

EndSignals::EndSignals() {
  ISTHMUS_CHECK(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) == 0);
  ISTHMUS_CHECK(write_end.exchange(pipe_[1]) == -1);
  struct sigaction hand_on {};
  hand_on.sa_handler = HandOn;
  hand_on.sa_flags = SA_RESTART;
  sigset_t ours;
  sigemptyset(&ours);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    handlers_before_[signal] = before;
    sigaction(signal, &hand_on, nullptr);
    sigaddset(&ours, signal);
  }
  pthread_sigmask(SIG_BLOCK, &ours, &before_);
}

EndSignals::~EndSignals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  for (const auto& [signal, before] : handlers_before_) sigaction(signal, &before, nullptr);
  write_end = -1;
  close(pipe_[0]);
  close(pipe_[1]);
}

int EndSignals::WaitFor(absl::Duration duration) {
  sigset_t open;
  pthread_sigmask(SIG_BLOCK, nullptr, &open);
  for (const auto& [signal, before] : handlers_before_) sigdelset(&open, signal);
  const auto until = SteadyAfter(duration);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
        until - std::chrono::steady_clock::now());
    const timespec timeout =
        absl::ToTimespec(left.count() > 0 ? absl::FromChrono(left) : absl::ZeroDuration());
    pollfd readable{pipe_[0], POLLIN, 0};
    // The signals are open in here alone.
    const int ready = ppoll(&readable, 1, &timeout, &open);
    unsigned char byte = 0;
    if (read(pipe_[0], &byte, 1) == 1) return byte;
    if (ready == 0) return 0;
  }
}

bool EndSignals::pending() const {
  sigset_t waiting;  // blocked in every thread but for WaitFor's
  sigpending(&waiting);
  for (const auto& [signal, before] : handlers_before_) {
    if (sigismember(&waiting, signal) == 1) return true;
  }
  pollfd readable{pipe_[0], POLLIN, 0};
  return poll(&readable, 1, 0) > 0;
}

}  // namespace isthmus
