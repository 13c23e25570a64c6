// What the planner may look at: the daemons that a job could use now, with their links and their
// data, and waits until what is under way there is known. Owns nothing. Thread: any; the waits end
// with their patience, the caller or the coordinator.
#ifndef ISTHMUS_COORDINATOR_SERVICE_PLANNER_VIEW_H_
#define ISTHMUS_COORDINATOR_SERVICE_PLANNER_VIEW_H_

#include "absl/time/time.h"
#include "coordinator/core/run_changes.h"
#include "coordinator/planner/planner_input.h"
#include "coordinator/service/cores.h"

namespace isthmus::coordinator {

struct PlannerPatience {
  absl::Duration links = absl::Seconds(60);  // until the daemons' links are measured
  absl::Duration data = absl::Seconds(6);    // for what daemons tell of files that just came
  // Until daemons have ended their last session, or have put what they keep of the checkpoint to go
  // on from.
  absl::Duration daemons = absl::Seconds(15);
};

// Daemons, links and, where it ran before, the last plan of `in->job_id`; the caller has filled in
// the rest. `with_busy`: as if no other job ran.
void AddTopology(Cores* cores, bool with_busy, PlannerInput* in)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores->mutex);

// The job that holds the daemon, so that no other one's plan may use it: it runs there, or ends its
// generation there to take a new plan. Null: none does, or `own` alone.
const Job* HeldBy(const Cores& cores, const std::string& node_id, const std::string& own)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores.mutex);

// Of the first daemon that lists the text: hosts with another one are found when they start.
DataNow DataOf(const Cores& cores, const JobSpec& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores.mutex);

// Until daemons are idle, their links measured and their data listed, as far as `job` needs them.
void WaitForTopology(Cores* cores, const PlannerPatience& patience, const JobSpec& job,
                     const Cancelled& cancelled);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_PLANNER_VIEW_H_
