// SIGINT and SIGTERM turned into a call, for commands that wait long. The signals are blocked in
// the whole process from construction on, so make it before other threads start (gRPC's!); the
// destructor restores the mask. A second signal ends the process at once. Thread: one owner; the
// function given to OnSignal runs on the object's own thread.
#ifndef ISTHMUS_COORDINATOR_CLI_INTERRUPT_H_
#define ISTHMUS_COORDINATOR_CLI_INTERRUPT_H_

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "absl/time/time.h"
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

  sigset_t old_mask_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar signalled_;
  std::function<void()> handler_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_INTERRUPT_H_
