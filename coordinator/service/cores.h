// What is true now of daemons, jobs, links and computing: the cores of values, behind one mutex
// that every class of the service shares. It is held for a look or a change, never while one waits
// for the disk, a daemon or the planner. A class that has a mutex of its own says in its header
// which of the two is taken first. Thread: any. Owner: Coordinator.
#ifndef ISTHMUS_COORDINATOR_SERVICE_CORES_H_
#define ISTHMUS_COORDINATOR_SERVICE_CORES_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/measured_links.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/trace_table.h"
#include "coordinator/planner/compute_table.h"

namespace isthmus::coordinator {

struct Cores {
  Cores(const MembershipOptions& m, const JobOptions& j, const MeasuredLinksOptions& l,
        const ComputeTableOptions& c)
      : members(m), jobs(j), links(l), compute(c) {}

  Mutex mutex;
  CondVar changed;  // jobs, links or members changed; stopping
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  Membership members ABSL_GUARDED_BY(mutex);
  JobTable jobs ABSL_GUARDED_BY(mutex);
  MeasuredLinks links ABSL_GUARDED_BY(mutex);
  ComputeTable compute ABSL_GUARDED_BY(mutex);
  TraceTable traces ABSL_GUARDED_BY(mutex);
};

using Cancelled = std::function<bool()>;  // the caller has gone: waits end

inline absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping"); }
inline absl::Status NoJob(const std::string& job) {
  return absl::NotFoundError(
      absl::StrCat("there is no job '", job.substr(0, 80), "' (isthmus list shows what there is)"));
}

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_CORES_H_
