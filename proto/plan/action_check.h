// The check of a plan's action lists, whoever wrote them. Thread: pure function.
#ifndef ISTHMUS_PROTO_PLAN_ACTION_CHECK_H_
#define ISTHMUS_PROTO_PLAN_ACTION_CHECK_H_

#include "absl/status/status.h"
#include "proto/plan.pb.h"

namespace isthmus {

// FailedPrecondition names the rank and action that is out of order, does not match another rank's,
// or waits forever. OK: every micro-batch of a rank is forwarded and backwarded once and its
// neighbours exchange it, every group is reduced after its gradients are complete, all ranks vote
// once, one decides, all hear it before they step (with local steps: of their replica), and nothing
// deadlocks at the links' queue_limit.
absl::Status CheckActions(const Plan& plan);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_ACTION_CHECK_H_
