#include "coordinator/cli/interrupt.h"

#include <chrono>
#include <csignal>
#include <utility>

#include "base/clock.h"

namespace isthmus::cli {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);

}  // namespace

Interrupt::Interrupt() {
  thread_ = std::thread([this] { Run(); });
}

void Interrupt::OnSignal(std::function<void()> handler) {
  MutexLock lock(&mutex_);
  handler_ = std::move(handler);
  if (interrupted_ && handler_) handler_();
}

void Interrupt::Run() {
  while (!stop_) {
    if (signals_.WaitFor(kPoll) == 0) continue;
    if (interrupted_.exchange(true)) {
      // The second one: the user does not want to wait. The default action ends the process.
      std::signal(SIGINT, SIG_DFL);
      sigset_t open;
      sigemptyset(&open);
      pthread_sigmask(SIG_SETMASK, &open, nullptr);
      std::raise(SIGINT);
    }
    MutexLock lock(&mutex_);
    if (handler_) handler_();
    signalled_.SignalAll();
  }
}

bool Interrupt::WaitFor(absl::Duration duration) {
  const auto deadline = SteadyAfter(duration);
  MutexLock lock(&mutex_);
  while (!interrupted_ && signalled_.WaitUntil(&mutex_, deadline)) {
  }
  return interrupted_;
}

Interrupt::~Interrupt() {
  stop_ = true;
  thread_.join();
}

}  // namespace isthmus::cli
