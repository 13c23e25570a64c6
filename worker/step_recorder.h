// Makes the StepRecord of each step from the counters of the links and the executor's times.
// Thread: the compute thread.
#ifndef ISTHMUS_WORKER_STEP_RECORDER_H_
#define ISTHMUS_WORKER_STEP_RECORDER_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "proto/control.pb.h"
#include "worker/executor.h"
#include "worker/inlet.h"
#include "worker/outlet.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

class StepRecorder {
 public:
  explicit StepRecorder(const SessionPlan& plan) : plan_(plan) {}

  // A line of the session; it outlives the recorder.
  void Add(const Inlet& in, const Outlet& out) { lines_.push_back({&in, &out, {}, {}}); }

  void Begin();
  StepRecord End(int64_t step, const StepResult& result);  // its times
  // Bytes and codec times since the last call. A frame that is still queued counts for the step
  // after it, so before the last call the outlets are to be closed and joined.
  void AddLinks(StepRecord* record);

 private:
  struct Reading {
    int64_t codec_ns = 0;
    int64_t raw_bytes = 0;
    int64_t wire_bytes = 0;
    int64_t key_frames = 0;
    int64_t late_buffer_reads = 0;
  };
  struct Line {
    const Inlet* in;
    const Outlet* out;
    Reading last_in, last_out;
  };

  static Reading Read(const Meter& meter);

  const SessionPlan& plan_;
  std::vector<Line> lines_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_STEP_RECORDER_H_
