// SIGINT, SIGTERM and SIGHUP turned into a call, for commands that wait long. Make it before other
// threads start (gRPC's!), see EndSignals. A second signal ends the process at once. Thread: one
// owner; the function given to OnSignal runs on the object's own thread.
#ifndef ISTHMUS_COORDINATOR_CLI_INTERRUPT_H_
#define ISTHMUS_COORDINATOR_CLI_INTERRUPT_H_

#include <atomic>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "base/end_signals.h"
#include "base/mutex.h"

namespace isthmus::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Called at a signal, or now if there was one. An empty function: nothing, any longer.
  void OnSignal(std::function<void()> handler);
  bool interrupted() const { return interrupted_; }
  // Sleeps; true if a signal came before the end of it.
  bool WaitFor(absl::Duration duration);

 private:
  void Run();

  EndSignals signals_;  // before thread_
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar signalled_;
  std::function<void()> handler_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_INTERRUPT_H_
