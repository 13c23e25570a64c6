// The planner: a pure function from what a user asks and what was measured to a complete plan with
// its reasons.
//
// It compares stage counts (strategy.stages 0: as many as pay), orders of daemons (all of them for
// few daemons, else greedily from the fastest ones) and cuts, and keeps a resumed job where it was
// if nothing is much better; for the best it writes stages, links, codecs, windows, schedules and
// deadlines. Same input, same plan. Refusals say in words what is missing:
//   InvalidArgument     the job can't run on any daemons (fields out of range, data too small)
//   FailedPrecondition  too few daemons, or those it names are not there: more would cure it
//   NotFound            the data is not there
//   ResourceExhausted   memory or disk: how many bytes are needed and there are
//   Unavailable         it ends by itself: daemons that are known are away or busy; no usable
//                       links: which pairs and why
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PLANNER_H_
#define ISTHMUS_COORDINATOR_PLANNER_PLANNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner_input.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int64_t kSavedStates = 3;  // of a codec, that a daemon may hold at once: of the last two
                                     // checkpoints, and one that is being written
constexpr int64_t kMaxPlanBytes = 3500000;  // a plan travels in one control message

struct PlannedJob {
  Plan plan;  // predicted_step_s and explanation are in it
  std::vector<std::string> warnings;
  // With the price of higher losses: what layouts are compared by. `previous_cost_s`: of the plan
  // before with the codecs it had, by the same figures; 0: there is none, or it can't be priced.
  double cost_s = 0, previous_cost_s = 0;
};

absl::StatusOr<PlannedJob> MakePlan(const PlannerInput& input);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PLANNER_H_
