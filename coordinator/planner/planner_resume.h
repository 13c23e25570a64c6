// Keeps a resumed job where it was: its daemons have the states of its codecs.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PLANNER_RESUME_H_
#define ISTHMUS_COORDINATOR_PLANNER_PLANNER_RESUME_H_

#include <vector>

#include "coordinator/planner/found.h"
#include "coordinator/planner/planner_input.h"

namespace isthmus::coordinator {

// `found` has the best placement on `nodes`, the daemons that may be used. The previous plan's
// takes its place while a step takes at most kKeepPlacement of the best one's time; else
// `found->moved_why` says why not. With local steps it takes its place on the same daemons whatever
// is measured. A job without a previous plan is left alone.
void KeepPrevious(const PlannerInput& input, const std::vector<const NodeInfo*>& nodes,
                  const LinkIndex& links, Found* found);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PLANNER_RESUME_H_
