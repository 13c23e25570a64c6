// The search behind the planner: which daemons, in which order, how many stages.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_
#define ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/placement.h"
#include "coordinator/planner/planner_input.h"

namespace isthmus::coordinator {

absl::StatusOr<Found> FindPlacement(const PlannerInput& input, const LinkIndex& links);

// Up to kPricedOrders orders of `stages` of the `nodes` (indices), best first by a rough score.
// Empty: no order has usable links.
std::vector<std::vector<int>> PromisingOrders(const JobSpec& job,
                                              const std::vector<const NodeInfo*>& nodes, int stages,
                                              const LinkIndex& links);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_
