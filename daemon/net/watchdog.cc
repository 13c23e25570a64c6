#include "daemon/net/watchdog.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace isthmus::daemon {
namespace {

constexpr std::chrono::hours kIdle{1};

}  // namespace

Watchdog::Watchdog() : wake_(Clock::now() + kIdle), thread_([this] { Loop(); }) {}

Watchdog::~Watchdog() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

Watchdog::Watch::Watch(Watchdog* dog, absl::Duration timeout, std::function<void()> expire)
    : dog_(dog), timeout_(timeout), id_(dog->Add(timeout, std::move(expire))) {}

Watchdog::Watch::~Watch() { dog_->Remove(id_); }

void Watchdog::Watch::Touch() { dog_->Touch(id_, timeout_); }

int64_t Watchdog::Add(absl::Duration timeout, std::function<void()> expire) {
  MutexLock lock(&mutex_);
  const int64_t id = next_id_++;
  const auto deadline = SteadyAfter(timeout);
  entries_.emplace(id, Entry{deadline, std::move(expire)});
  if (deadline < wake_) changed_.SignalAll();
  return id;
}

void Watchdog::Touch(int64_t id, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto entry = entries_.find(id);
  if (entry != entries_.end()) entry->second.deadline = SteadyAfter(timeout);
}

void Watchdog::Remove(int64_t id) {
  MutexLock lock(&mutex_);
  entries_.erase(id);
  while (running_ == id) changed_.Wait(&mutex_);
}

void Watchdog::Loop() {
  MutexLock lock(&mutex_);
  while (!stop_) {
    const auto now = Clock::now();
    wake_ = now + kIdle;
    auto due = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->second.deadline <= now) due = entry;
      wake_ = std::min(wake_, entry->second.deadline);
    }
    if (due == entries_.end()) {
      changed_.WaitUntil(&mutex_, wake_);
      continue;
    }
    running_ = due->first;
    const std::function<void()> expire = std::move(due->second.expire);
    entries_.erase(due);
    mutex_.Unlock();
    expire();
    mutex_.Lock();
    running_ = 0;
    changed_.SignalAll();
  }
}

}  // namespace isthmus::daemon
