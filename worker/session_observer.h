// Who is told what a session does. Owned by whoever runs the session; outlives it.
#ifndef ISTHMUS_WORKER_SESSION_OBSERVER_H_
#define ISTHMUS_WORKER_SESSION_OBSERVER_H_

#include "proto/control.pb.h"

namespace isthmus::worker {

// Thread: called from the session's; must not block for long.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void OnStep(const StepRecord& record) = 0;
  virtual void OnEvent(const SessionEvent& event) = 0;
  virtual void OnTrace(const StepTrace& trace) = 0;  // where Session::RequestTrace asked for it
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SESSION_OBSERVER_H_
