// Makes the StepRecord of each step from the executor's times and what the step's frames came to,
// and tells it to the observer: in the order of steps, each as soon as its last frame is sent. The
// compute thread goes on meanwhile; a frame counts for its own step, however long it was queued.
//
// Thread: Add, Begin, End, Finish and Flush on the compute thread; Sent from any. The observer is
// called on one of these threads at a time, without a lock. Bound: the queues of the outlets.
#ifndef ISTHMUS_WORKER_STEP_RECORDER_H_
#define ISTHMUS_WORKER_STEP_RECORDER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/mutex.h"
#include "proto/control.pb.h"
#include "worker/executor.h"
#include "worker/link/inlet.h"
#include "worker/link/outlet.h"
#include "worker/session_observer.h"
#include "worker/session_plan.h"
#include "worker/step_tracer.h"

namespace isthmus::worker {

class StepRecorder {
 public:
  // `tracer`, which outlives it: what it has of a step is told with the record; null: none.
  StepRecorder(const SessionPlan& plan, SessionObserver* observer, StepTracer* tracer = nullptr)
      : plan_(plan), observer_(observer), tracer_(tracer) {}

  // A line of the session, before its threads start; it outlives the recorder.
  void Add(const Inlet& in, Outlet* out) { lines_.push_back({&in, out, {}}); }

  void Begin();
  StepRecord End(int64_t step, const StepResult& result);  // its times
  // The step's last frame is pushed.
  void Finish(StepRecord record);
  // An outlet has sent a frame.
  void Sent() { Tell(false); }
  // The outlets have ended: tells what is left with what was sent.
  void Flush() { Tell(true); }

 private:
  struct Line {
    const Inlet* in;
    Outlet* out;
    Reading last_in;
  };
  struct Pending {
    StepRecord record;
    std::vector<int64_t> frames;  // of each line, that have to be sent
  };

  void Tell(bool all);
  bool AllSent(const Pending& pending) const;
  void AddSent(StepRecord* record) const;
  GroupRecord* GroupOf(int group, StepRecord* record) const;

  const SessionPlan& plan_;
  SessionObserver* const observer_;
  StepTracer* const tracer_;
  std::vector<Line> lines_;
  std::chrono::steady_clock::time_point begin_;
  // In this step, or the one before, some rank sent a checkpoint: its frames shared the lines.
  bool stores_ = false, stored_before_ = false;
  Mutex mutex_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  bool telling_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_STEP_RECORDER_H_
