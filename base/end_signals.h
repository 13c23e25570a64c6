// The signals that ask a program to end in order: SIGINT, SIGTERM and SIGHUP (a closed terminal, a
// lost ssh session). SIGHUP is none of them where the program was started with it ignored, as nohup
// does.
//
// They are blocked in the constructing thread and in all that it starts. A thread that was there
// before (OpenBLAS starts its own while the program is loaded) may still take one: its handler
// hands the signal on, so the default action never ends the process.
// Thread: one owner; one object at a time in a process.
#ifndef ISTHMUS_BASE_END_SIGNALS_H_
#define ISTHMUS_BASE_END_SIGNALS_H_

#include <csignal>
#include <map>

#include "absl/time/time.h"

namespace isthmus {

class EndSignals {
 public:
  EndSignals();
  ~EndSignals();  // mask and handlers are as before; a signal not yet taken is lost
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  // The signal that came, or comes within `duration`; 0: none. Any one thread.
  int WaitFor(absl::Duration duration);
  // One has come and is not yet taken by WaitFor. Any thread.
  bool pending() const;

 private:
  sigset_t before_;
  std::map<int, struct sigaction> handlers_before_;
  int pipe_[2] = {-1, -1};
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_END_SIGNALS_H_
