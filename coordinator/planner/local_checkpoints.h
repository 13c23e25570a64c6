// Local checkpoints of a plan (proto/plan/local_checkpoints.h) in words, and, with
// checkpoint.buddies, who keeps a copy of whose: the daemon that a rank's own reaches fastest of
// those that it can dial. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_LOCAL_CHECKPOINTS_H_
#define ISTHMUS_COORDINATOR_PLANNER_LOCAL_CHECKPOINTS_H_

#include <string>
#include <vector>

#include "coordinator/planner/cost_model.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

struct LocalCheckpointWords {
  std::vector<std::string> explanation;
  std::vector<std::string> warnings;
};

// Sets RankPlan.buddy. Of `plan` all else is there already.
LocalCheckpointWords PlanLocalCheckpoints(const LinkIndex& links, Plan* plan);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_LOCAL_CHECKPOINTS_H_
