// The traces that are being taken, one of a job at most: each daemon's clock is read a few times,
// one reading after the other, then all ranks are asked for their next steps. They hear it at
// different moments: each is asked for a few steps more, and what counts are the steps that all
// ranks tell of. A core of values: what is to be said to daemons comes back as Commands.
// Thread: one owner. Bounds: kMaxTraceSteps, kMaxTraceBytes.
#ifndef ISTHMUS_COORDINATOR_CORE_TRACE_TABLE_H_
#define ISTHMUS_COORDINATOR_CORE_TRACE_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/clock_estimate.h"
#include "coordinator/core/jobs.h"
#include "proto/control.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxTraceSteps = 100;
constexpr int kClockReadings = 8;            // of each daemon
constexpr int64_t kMaxTraceBytes = 3 << 20;  // of one job: the answer is one message

class TraceTable {
 public:
  // The first readings. InvalidArgument: `steps`. FailedPrecondition: the job is being traced.
  absl::StatusOr<Commands> Begin(const Plan& plan, int steps, uint64_t now_ns);
  // The next one of that daemon. One that was not asked for is none.
  Commands OnClock(const std::string& node_id, const ClockReading& reading, uint64_t now_ns);
  bool ClocksRead(const std::string& job_id) const;

  // The question for steps. `step`: the time of one.
  Commands Ask(const std::string& job_id, absl::Duration step);
  void OnTrace(const std::string& node_id, const StepTrace& trace);
  bool Done(const std::string& job_id) const;
  int64_t heard(const std::string& job_id) const;  // traces so far

  // Forgets it. Of the ranks that told of any steps those that all of them told of; at most as many
  // as were asked for. Its plan has no action lists.
  TraceJobReply End(const std::string& job_id);

 private:
  struct Rank {
    ClockEstimate clock;
    uint64_t asked_ns = 0;  // the reading under way; 0: none
    std::map<int64_t, StepTrace> steps;
  };
  struct Trace {
    Plan plan;
    int steps = 0;
    std::vector<Rank> ranks;
    int64_t bytes = 0;
    int64_t heard = 0;
    bool full = false;
  };
  static Command Reading(const RankPlan& at, Rank* rank, uint64_t now_ns);
  static std::vector<int64_t> Common(const Trace& trace);
  const Trace* Find(const std::string& job_id) const;
  Trace* Of(const std::string& node_id, int* rank);

  std::map<std::string, Trace> traces_;  // by job
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_TRACE_TABLE_H_
