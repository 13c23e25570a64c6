// Plans drawn at random, for comparison with the planner's: numbers of replicas and stages (where
// the job leaves them to the planner), daemons, their order and the cut. Every other cut is the one
// that computes fastest on the drawn daemons, the others are any. Deterministic. Thread: pure
// functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_RANDOM_PLANS_H_
#define ISTHMUS_COORDINATOR_PLANNER_RANDOM_PLANS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/layout.h"

namespace isthmus::coordinator {

constexpr int kRandomPlans = 1000;     // of a comparison
constexpr int kRandomDrawsForOne = 4;  // at most so many for one that can run
// Passes of all priced plans together, about: jobs with very many micro-batches get fewer plans.
constexpr int64_t kMostRandomPasses = int64_t{1} << 21;

struct RandomPlans {
  absl::StatusOr<Layout> best;  // by cost_s, priced with Effort::kQuick; else the first refusal
  int64_t priced = 0;           // that can run
};

// `nodes` can compute. Numbers of stages and replicas and the cut are those of job.strategy where
// it has any. `plans`: so many that can run.
RandomPlans BestRandomPlan(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                           const LinkIndex& links, const Remaining& remaining, int plans,
                           uint64_t seed);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_RANDOM_PLANS_H_
