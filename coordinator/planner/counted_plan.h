// What comparisons (compare.h) need of the planner beside MakePlan. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_COUNTED_PLAN_H_
#define ISTHMUS_COORDINATOR_PLANNER_COUNTED_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"

namespace isthmus::coordinator {

// MakePlan; `priced` grows by the layouts whose step was simulated.
absl::StatusOr<PlannedJob> MakeCountedPlan(const PlannerInput& input, int64_t* priced);

// The input as a plan of it looks at it first: some daemons of each card, each with its part of it.
PlannerInput InputOnCards(const PlannerInput& input);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_COUNTED_PLAN_H_
