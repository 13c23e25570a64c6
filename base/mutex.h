// std::mutex and std::condition_variable with Clang's thread-safety annotations. (ThreadSanitizer
// reports absl::Mutex of an uninstrumented library falsely, so the project uses these.) Thread:
// safe by nature.
#ifndef ISTHMUS_BASE_MUTEX_H_
#define ISTHMUS_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
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

class CondVar {
 public:
  // Releases *mutex, waits, holds *mutex again. Wakes spuriously: loop on the condition.
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  // False at the deadline. The clock is steady.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    // wait_until on the system clock: libstdc++'s steady path uses pthread_cond_clockwait, which
    // ThreadSanitizer does not see.
    const auto left = deadline - std::chrono::steady_clock::now();
    const bool signalled =
        left.count() > 0 && cond_.wait_until(lock, std::chrono::system_clock::now() + left) ==
                                std::cv_status::no_timeout;
    lock.release();
    return signalled || std::chrono::steady_clock::now() < deadline;
  }
  void Signal() { cond_.notify_one(); }
  void SignalAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_MUTEX_H_
