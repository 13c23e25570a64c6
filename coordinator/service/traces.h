// Takes a trace of a running job for a caller who waits for it: reads the daemons' clocks, asks
// them for steps, and gives back what came. Owns nothing; what comes is in Cores.traces.
// Thread: any.
#ifndef ISTHMUS_COORDINATOR_SERVICE_TRACES_H_
#define ISTHMUS_COORDINATOR_SERVICE_TRACES_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/daemons.h"

namespace isthmus::coordinator {

struct TracesOptions {
  absl::Duration clocks = absl::Seconds(5);  // all readings; a trace goes on without those missing
  // No daemon tells of a step for so long, and so many steps on top: what has come is all.
  absl::Duration quiet = absl::Seconds(10);
  int quiet_steps = 3;
  absl::Duration total = absl::Minutes(30);  // likewise
};

class Traces {
 public:
  Traces(Cores* cores, Daemons* daemons, TracesOptions options)
      : cores_(cores), daemons_(daemons), options_(options) {}

  // Ranks may be missing in the answer, and steps. InvalidArgument: steps. NotFound: the job.
  // FailedPrecondition: it does not run, is being traced, or ended before anything came.
  // DeadlineExceeded: no daemon told of a step.
  absl::StatusOr<TraceJobReply> Trace(const TraceJobRequest& request, const Cancelled& cancelled);

 private:
  // Until `enough`, the job no longer runs `plan`, or `patience` has passed since `heard` last
  // grew.
  absl::Status Wait(const Plan& plan, const std::function<bool()>& enough,
                    const std::function<int64_t()>& heard, absl::Duration patience,
                    const Cancelled& cancelled) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  absl::Status Take(const Plan& plan, absl::Duration step, const Cancelled& cancelled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  absl::Status NothingCame(const std::string& job_id, uint64_t generation,
                           absl::Duration patience) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  bool Runs(const Plan& plan) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);

  Cores* const cores_;
  Daemons* const daemons_;
  const TracesOptions options_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_TRACES_H_
