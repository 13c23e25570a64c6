#include "coordinator/cli/interrupt.h"

#include <chrono>
#include <ctime>
#include <utility>

namespace isthmus::cli {
namespace {

constexpr long kPollNanoseconds = 50'000'000;

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
  thread_ = std::thread([this] { Run(); });
}

void Interrupt::OnSignal(std::function<void()> handler) {
  MutexLock lock(&mutex_);
  handler_ = std::move(handler);
  if (interrupted_ && handler_) handler_();
}

void Interrupt::Run() {
  const sigset_t set = Signals();
  const timespec poll{0, kPollNanoseconds};
  while (!stop_) {
    if (sigtimedwait(&set, nullptr, &poll) <= 0) continue;
    if (interrupted_.exchange(true)) {
      // The second one: the user does not want to wait. The default action ends the process.
      std::signal(SIGINT, SIG_DFL);
      pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      std::raise(SIGINT);
    }
    MutexLock lock(&mutex_);
    if (handler_) handler_();
    signalled_.SignalAll();
  }
}

bool Interrupt::WaitFor(absl::Duration duration) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
  MutexLock lock(&mutex_);
  while (!interrupted_ && signalled_.WaitUntil(&mutex_, deadline)) {
  }
  return interrupted_;
}

Interrupt::~Interrupt() {
  stop_ = true;
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace isthmus::cli
