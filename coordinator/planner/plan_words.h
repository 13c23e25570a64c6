// What a plan says of itself: each choice in words with its figures, and what a user should know
// before it runs. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PLAN_WORDS_H_
#define ISTHMUS_COORDINATOR_PLANNER_PLAN_WORDS_H_

#include <string>
#include <vector>

#include "coordinator/planner/deadlines.h"
#include "coordinator/planner/found.h"
#include "coordinator/planner/job_data.h"
#include "coordinator/planner/planner_input.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// "b0"; with several replicas "b0.1", of replica 1.
std::string BoundaryId(const Layout& layout, int replica, int boundary);

struct PlanWords {
  std::vector<std::string> explanation, warnings;
};
// `data`: of the whole job. `plan`: all but its explanation is there.
PlanWords WordsOfPlan(const PlannerInput& input, const Found& found, const DataSize& data,
                      const PlannedDeadlines& deadlines, const Plan& plan);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PLAN_WORDS_H_
