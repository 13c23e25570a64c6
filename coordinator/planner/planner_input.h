// What the planner is asked, and the bounds of its search. Thread: values.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PLANNER_INPUT_H_
#define ISTHMUS_COORDINATOR_PLANNER_PLANNER_INPUT_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/planner/deadlines.h"
#include "proto/job.pb.h"
#include "proto/job/job_defaults.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxPlannedNodes = 64;     // beyond, the fastest ones are looked at
constexpr int kExhaustiveOrders = 1000;  // as many orders of daemons are compared one by one
constexpr int kPricedOrders = 6;         // best orders by a rough score that are priced exactly
constexpr int kMostReplicas = 16;        // that strategy.replicas 0 compares
constexpr double kStagesMustPay =
    0.98;  // one stage more is taken if a step takes at most this share of the time
// A resumed job stays on its daemons with its cut, and with the codecs that `auto` gave it, while a
// step costs at most this share of the best one's. On the same daemons in another order or cut the
// gain rests on their measured compute alone, whose noise must not move a job.
constexpr double kKeepPlacement = 1.1;
constexpr double kKeepCut = 1.25;

// A daemon that is not in the topology.
struct AbsentNode {
  std::string id, name;
  std::string why;               // "lab runs job bible-1": for the words of a refusal
  bool comes = false;            // by itself: it is busy or not heard, and has not been told to end
  std::optional<NodeInfo> node;  // what it last told, where it is heard
  int64_t planned_bytes = 0;     // that the job it runs takes there, by its plan
};

struct PlannerInput {
  std::string job_id;
  JobSpec job;                    // with defaults, valid; without phases: that of one of them
  std::vector<PhaseSpec> phases;  // of the whole job; none: it has no phases
  int phase = 0;                  // which of them `job` is, and the steps before it
  int64_t phase_start = 0;
  Topology topology;  // daemons that are alive and free, and the links between them
  // By identity, for the words: what steps of jobs took against the measured reference block. The
  // daemons of `topology` are corrected by it already.
  std::map<std::string, double> compute_factors;
  std::vector<AbsentNode> absent;
  uint64_t generation = 0;
  int64_t start_step = 0;
  bool from_checkpoint = false;
  CoordinatorPaths paths;
  std::optional<DataPosition> data;  // before start_step; none: not known here
  Plan previous;  // of a resumed job: the states of its codecs lie with that plan's daemons
  // `previous` runs, or ran until now, and its links have changed: the best codecs are wanted,
  // however little better they are.
  bool follows = false;
};

// The daemons that a job takes at least: fewer are refused at once, with words of their own.
inline int LeastDaemons(const StrategySpec& strategy) {
  return std::max(1, WantedStages(strategy)) * std::max(1, strategy.replicas());
}

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PLANNER_INPUT_H_
