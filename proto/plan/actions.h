// The action lists of a whole plan: the passes of each replica's schedule, and the end of a step as
// data: who reduces what, how the votes reach the rank that decides, and how the decision comes
// back. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_ACTIONS_H_
#define ISTHMUS_PROTO_PLAN_ACTIONS_H_

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "proto/plan.pb.h"
#include "proto/plan/simulation.h"

namespace isthmus {

// Fills the lists of all ranks, from the plan's job, ranks (stage, replica), links and groups.
// `warmups`: of each replica as in BuildSchedule; none: the schedule's own. A step ends so:
//   the last backward pass; of buckets (parts.h) in pieces, from the last layers on, with the OFFER
//   of each bucket but the last one between two of them;
//   buffer hashes, where compression.check_buffers asks for them;
//   OFFER, REDUCE, COLLECT of the groups, in their order, buckets first. A rank whose own vote does
//   not depend on an EXCHANGE finishes it after the vote;
//   votes go down each chain of stages, then from the first stages to that of the first replica,
//   which decides; the decision goes back the same way;
//   STEP.
// With local steps (groups.h) a step reduces gradients inside its replica alone, and each replica
// votes and decides by itself. What replicas agree on (agreements.h) has a list of its own,
// `agree`: the reductions of the differences, the votes and the decision of all ranks as above,
// OUTER. An agreement of one fragment follows its part of it. Of subnetworks (deal.h) DEAL
// comes after the OFFERs, MERGE after the REDUCEs: in the order of their frames on a link.
// InvalidArgument: a schedule that can't be built. FailedPrecondition: as CheckActions.
absl::Status WriteActions(const std::vector<std::vector<int>>& warmups, Plan* plan);

// The norm of the tied embedding's gradient counts on one rank alone: the first of its group.
// Without such a group it counts where it is.
bool CountsTiedNorm(const Plan& plan, int rank);

// Frames that a direction of `link` may hold between link and compute thread; at least 1.
int QueueLimit(const Plan& plan, const LinkPlan& link);

ActionList TrainOf(const Plan& plan, int rank);
ActionList AgreeOf(const Plan& plan, int rank);

// Of each micro-batch, how many BWD a list has: one, or the pieces of the pass.
std::map<int, int> BackwardPieces(const ActionList& list);

// Forward passes in a list: micro-batches of a step, or of a validation pass.
int CountForwards(const google::protobuf::RepeatedPtrField<Action>& list);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_ACTIONS_H_
