// Bounded blocking queue: the only place where threads of a session meet.
// The first Close(status) is final: producers get it at once, consumers after the items already
// queued, or at once with Abort(). Thread: every method may be called from any thread.
#ifndef ISTHMUS_BASE_QUEUE_H_
#define ISTHMUS_BASE_QUEUE_H_

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace isthmus {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Blocks while full. DeadlineExceeded after `timeout`; the closing status once closed.
  absl::Status Push(T item, absl::Duration timeout) {
    const auto deadline = SteadyAfter(timeout);
    MutexLock lock(&mutex_);
    while (closed_.ok() && items_.size() >= capacity_) {
      if (!not_full_.WaitUntil(&mutex_, deadline)) return Late(timeout, "push to a full queue");
    }
    if (!closed_.ok()) return closed_;
    items_.push_back(std::move(item));
    not_empty_.Signal();
    return absl::OkStatus();
  }

  // Blocks while empty. DeadlineExceeded after `timeout`; the closing status once closed and
  // drained.
  absl::StatusOr<T> Pop(absl::Duration timeout) {
    const auto deadline = SteadyAfter(timeout);
    MutexLock lock(&mutex_);
    while (closed_.ok() && items_.empty()) {
      if (!not_empty_.WaitUntil(&mutex_, deadline)) return Late(timeout, "pop from an empty queue");
    }
    if (items_.empty()) return closed_;
    T item = std::move(items_.front());
    items_.pop_front();
    not_full_.Signal();
    return item;
  }

  // `why` must not be OK; absl::CancelledError("done") is the ordinary end. Items already queued
  // can still be popped.
  void Close(absl::Status why) {
    MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = std::move(why);
    not_full_.SignalAll();
    not_empty_.SignalAll();
  }

  // Close, and drop what is queued.
  void Abort(absl::Status why) {
    std::deque<T> dropped;  // destroyed outside the lock
    {
      MutexLock lock(&mutex_);
      if (closed_.ok()) closed_ = std::move(why);
      dropped.swap(items_);
      not_full_.SignalAll();
      not_empty_.SignalAll();
    }
  }

  size_t size() const {
    MutexLock lock(&mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  static absl::Status Late(absl::Duration timeout, const char* what) {
    return absl::DeadlineExceededError(std::string("no progress for ") +
                                       absl::FormatDuration(timeout) + " on " + what);
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_full_;
  CondVar not_empty_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_QUEUE_H_
