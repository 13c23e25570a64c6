// The search behind the planner: which daemons, in which order, how many stages.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_
#define ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/placement.h"
#include "coordinator/planner/planner.h"

namespace isthmus::coordinator {

struct Found {
  Placement best;
  std::vector<std::string> considered;  // "2 stages: 1.80 s a step (lab, home)"
  std::string moved_why;                // of a resumed job that does not stay where it was
};

absl::StatusOr<Found> FindPlacement(const PlannerInput& input, const LinkIndex& links);

// Up to kPricedOrders orders of `stages` of the `nodes` (indices), best first by a rough score.
// Empty: no order has usable links.
std::vector<std::vector<int>> PromisingOrders(const JobSpec& job,
                                              const std::vector<const NodeInfo*>& nodes, int stages,
                                              const LinkIndex& links);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_SEARCH_H_
