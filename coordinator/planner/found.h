// What the search hands to the writer of the plan. Thread: a value.
#ifndef ISTHMUS_COORDINATOR_PLANNER_FOUND_H_
#define ISTHMUS_COORDINATOR_PLANNER_FOUND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/planner/layout.h"

namespace isthmus::coordinator {

struct Found {
  Layout best;
  std::vector<std::string> considered;  // "2 stages: 1.80 s a step (lab, home)"
  std::string moved_why;                // of a resumed job that does not stay where it was
  double previous_cost_s = 0;           // see PlannedJob
  int64_t priced = 0;                   // layouts whose step was simulated
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_FOUND_H_
