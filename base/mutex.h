// std::mutex and a condition variable on the steady clock, with Clang's thread-safety annotations.
// (ThreadSanitizer reports absl::Mutex of an uninstrumented library falsely, so the project uses
// these.) Thread: safe by nature.
#ifndef ISTHMUS_BASE_MUTEX_H_
#define ISTHMUS_BASE_MUTEX_H_

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace isthmus {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits by CLOCK_MONOTONIC, which is the clock of std::chrono::steady_clock: a wall clock that is
// set or slewed during a wait changes nothing. std::condition_variable has no call for it that
// ThreadSanitizer sees (libstdc++ takes pthread_cond_clockwait or the wall clock).
class CondVar {
 public:
  CondVar() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&cond_, &attributes);
    pthread_condattr_destroy(&attributes);
  }
  ~CondVar() { pthread_cond_destroy(&cond_); }
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Releases *mutex, waits, holds *mutex again. Wakes spuriously: loop on the condition.
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    pthread_cond_wait(&cond_, mutex->mutex_.native_handle());
  }
  // False at the deadline.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    using std::chrono::nanoseconds;
    constexpr int64_t kSecond = 1'000'000'000;
    const int64_t at = std::max<int64_t>(
        0, std::chrono::duration_cast<nanoseconds>(deadline.time_since_epoch()).count());
    const timespec until{static_cast<time_t>(at / kSecond), static_cast<long>(at % kSecond)};
    const bool signalled =
        pthread_cond_timedwait(&cond_, mutex->mutex_.native_handle(), &until) == 0;
    return signalled || std::chrono::steady_clock::now() < deadline;
  }
  void Signal() { pthread_cond_signal(&cond_); }
  void SignalAll() { pthread_cond_broadcast(&cond_); }

 private:
  pthread_cond_t cond_;
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_MUTEX_H_
