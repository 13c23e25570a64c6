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
//   Unavailable         no usable links: which pairs and why
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PLANNER_H_
#define ISTHMUS_COORDINATOR_PLANNER_PLANNER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/deadlines.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxPlannedNodes = 64;     // beyond, the fastest ones are looked at
constexpr int kExhaustiveOrders = 1000;  // as many orders of daemons are compared one by one
constexpr int kPricedOrders = 6;         // best orders by a rough score that are priced exactly
constexpr double kStagesMustPay =
    0.98;  // one stage more is taken if a step takes at most this share of the time
// A resumed job stays on its daemons with its cut, and with the codecs that `auto` gave it, while a
// step costs at most this share of the best one's. On the same daemons in another order or cut the
// gain rests on their measured compute alone, whose noise must not move a job.
constexpr double kKeepPlacement = 1.1;
constexpr double kKeepCut = 1.25;
constexpr int64_t kSavedStates = 3;  // of a codec, that a daemon may hold at once: of the last two
                                     // checkpoints, and one that is being written
constexpr int64_t kMaxPlanBytes = 3500000;  // a plan travels in one control message

struct PlannerInput {
  std::string job_id;
  JobSpec job;        // with defaults, valid
  Topology topology;  // daemons that are alive and free, and the links between them
  // By identity, for the words: what steps of jobs took against the measured reference block. The
  // daemons of `topology` are corrected by it already.
  std::map<std::string, double> compute_factors;
  std::vector<std::string> absent;  // "lab runs job bible-1": daemons that are not in `topology`,
                                    // for the words of a refusal
  uint64_t generation = 0;
  int64_t start_step = 0;
  bool from_checkpoint = false;
  CoordinatorPaths paths;
  std::optional<DataPosition> data;  // before start_step; none: not known here
  Plan previous;  // of a resumed job: the states of its codecs lie with that plan's daemons
};

struct PlannedJob {
  Plan plan;  // predicted_step_s and explanation are in it
  std::vector<std::string> warnings;
};

absl::StatusOr<PlannedJob> MakePlan(const PlannerInput& input);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PLANNER_H_
