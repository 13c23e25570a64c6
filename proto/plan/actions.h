// The action lists of a whole plan: the passes of each replica's schedule, and the end of a step as
// data: who reduces what, how the votes reach the rank that decides, and how the decision comes
// back. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_ACTIONS_H_
#define ISTHMUS_PROTO_PLAN_ACTIONS_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/plan.pb.h"
#include "proto/plan/simulation.h"

namespace isthmus {

// Fills the lists of all ranks, from the plan's job, ranks (stage, replica), links and groups.
// `warmups`: of each replica as in BuildSchedule; none: the schedule's own. A step ends so:
//   buffer hashes, where compression.check_buffers asks for them;
//   OFFER, REDUCE, COLLECT of the groups, in their order. A rank whose own vote does not depend on
//   an EXCHANGE finishes it after the vote;
//   votes go down each chain of stages, then from the first stages to that of the first replica,
//   which decides; the decision goes back the same way;
//   STEP.
// With local steps (groups.h) a step reduces gradients inside its replica alone, and each replica
// votes and decides by itself. What ends it after AgreesAfter is a list of its own, `agree`: the
// reductions of the differences, the votes and the decision of all ranks as above, OUTER.
// InvalidArgument: a schedule that can't be built. FailedPrecondition: as CheckActions.
absl::Status WriteActions(const std::vector<std::vector<int>>& warmups, Plan* plan);

// FailedPrecondition names the rank and action that is out of order, does not match another rank's,
// or waits forever. OK: every micro-batch of a rank is forwarded and backwarded once and its
// neighbours exchange it, every group is reduced, all ranks vote once, one decides, all hear it
// before they step (with local steps: of their replica), and nothing deadlocks at the links'
// queue_limit.
absl::Status CheckActions(const Plan& plan);

// The norm of the tied embedding's gradient counts on one rank alone: the first of its group.
// Without such a group it counts where it is.
bool CountsTiedNorm(const Plan& plan, int rank);

// Frames that a direction of `link` may hold between link and compute thread; at least 1.
int QueueLimit(const Plan& plan, const LinkPlan& link);

ActionList TrainOf(const Plan& plan, int rank);
ActionList AgreeOf(const Plan& plan, int rank);

// Forward passes in a list: micro-batches of a step, or of a validation pass.
int CountForwards(const google::protobuf::RepeatedPtrField<Action>& list);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_ACTIONS_H_
