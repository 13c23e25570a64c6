// How long the waits of a session may last. Deadlines come from what was measured: a floor, a
// multiple of the predicted step (predictions err, hosts are shared), round trips, and for
// checkpoints the paths between the daemons and the coordinator.
//
// The parts of all stages travel at once: each over its own path, and together over the
// coordinator's, which carries at least what its best daemon measured. Waits for a checkpoint end
// by progress (checkpoint_ms without a byte), the other figures are for what is silent meanwhile.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_DEADLINES_H_
#define ISTHMUS_COORDINATOR_PLANNER_DEADLINES_H_

#include <map>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

using CoordinatorPaths = std::map<std::string, CoordinatorPath>;  // by id of the daemon

struct DeadlineInput {
  double first_step_s = 0;  // a step of first visits
  double again_step_s = 0;
  double agree_s = 0;                       // with local steps: the longest end of a round
  double longest_round_trip_s = 0;          // of the links
  double slowest_rate_bits_per_s = 0;       // of the links; 0: there is none
  const CoordinatorPaths* paths = nullptr;  // not null; daemons without one have not measured it
};

struct PlannedDeadlines {
  Deadlines deadlines;
  std::vector<std::string> explanation;
  std::vector<std::string> warnings;
};

// What parts of one checkpoint of `plan` take to the coordinator (`up`) or back, at the measured
// rates.
double CheckpointSeconds(const Plan& plan, const CoordinatorPaths& paths, bool up);

// Of `plan`: its job, stages, start_step and from_checkpoint are there already.
PlannedDeadlines MakeDeadlines(const Plan& plan, const DeadlineInput& input);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_DEADLINES_H_
