// One thread that ends what makes no progress: synchronous gRPC calls have no deadline for a single
// read or write, so a watch cancels their call. Thread: every method from any thread. The expiry
// runs on the watchdog's thread and must not block.
#ifndef ISTHMUS_DAEMON_NET_WATCHDOG_H_
#define ISTHMUS_DAEMON_NET_WATCHDOG_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace isthmus::daemon {

class Watchdog {
 public:
  Watchdog();
  ~Watchdog();  // no watch may be alive
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Calls `expire` once if it lives longer than `timeout` without Touch(). After the destructor
  // `expire` does not run and is not running.
  class Watch {
   public:
    Watch(Watchdog* dog, absl::Duration timeout, std::function<void()> expire);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    void Touch();  // progress: the time starts again

   private:
    Watchdog* const dog_;
    const absl::Duration timeout_;
    const int64_t id_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Clock::time_point deadline;
    std::function<void()> expire;
  };

  int64_t Add(absl::Duration timeout, std::function<void()> expire);
  void Touch(int64_t id, absl::Duration timeout);
  void Remove(int64_t id);
  void Loop();

  Mutex mutex_;
  CondVar changed_;
  std::map<int64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point wake_ ABSL_GUARDED_BY(mutex_);
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // whose expiry runs now
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_WATCHDOG_H_
