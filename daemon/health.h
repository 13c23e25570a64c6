// Whether every internal thread of the daemon still does its work. A thread that ends before the
// daemon does, or throws, is logged and turns /healthz to 503: nothing dies silently. Thread: any.
#ifndef ISTHMUS_DAEMON_HEALTH_H_
#define ISTHMUS_DAEMON_HEALTH_H_

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace isthmus::daemon {

class Health {
 public:
  // A thread named `name` that runs `body` until the daemon ends. Its early end or exception is a
  // fault.
  std::thread Spawn(const std::string& name, std::function<void()> body);

  void Fault(const std::string& name, const std::string& what);
  void Ending();  // from now on threads may end

  bool ok() const;
  std::string Report() const;  // "ok", or a line a fault

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::string> faults_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

// The line of /healthz about the coordinator. It answers no heartbeat, so the line tells of what
// went out; an open connection is no sign of life from the other end.
std::string CoordinatorLine(const std::string& address, bool connected,
                            absl::Duration heartbeat_age);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_HEALTH_H_
