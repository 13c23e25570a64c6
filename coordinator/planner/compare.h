// What the planner's plan is worth: beside it, of the same job on the same daemons, plans that
// others would make, all priced as MakePlan prices (the schedule simulated on daemons and links).
//   equal split     equal numbers of layers on the daemons as they are listed
//   genetic         a search as that of DT-FM (genetic_search.h), with equal numbers of layers
//   random          the best of kRandomPlans drawn ones (random_plans.h)
//   no compression  the planner's, of the job with codec `none` everywhere
//   planner         MakePlan's
// Every plan has the codecs that the job says, and keeps to strategy.stages and replicas where the
// job sets them; otherwise equal split and genetic take all daemons in one chain. strategy.nodes
// names which daemons may be taken, and only the planner and equal split keep to its order.
// Deterministic; seconds for 16 daemons and 48 layers, more where steps overlap. Thread: pure
// functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_COMPARE_H_
#define ISTHMUS_COORDINATOR_PLANNER_COMPARE_H_

#include "absl/status/statusor.h"
#include "coordinator/planner/planner_input.h"
#include "proto/comparison.pb.h"

namespace isthmus::coordinator {

// `input`: of a new job. Errors are the planner's, where it has no plan itself; what another one
// can't have is in its row.
absl::StatusOr<PlanComparison> ComparePlans(const PlannerInput& input);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_COMPARE_H_
