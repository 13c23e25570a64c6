// The search behind the planner: how many replicas and stages, which daemons, in which order.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_
#define ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_

#include "absl/status/statusor.h"
#include "coordinator/planner/found.h"
#include "coordinator/planner/planner_input.h"

namespace isthmus::coordinator {

absl::StatusOr<Found> FindLayout(const PlannerInput& input, const LinkIndex& links);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_
