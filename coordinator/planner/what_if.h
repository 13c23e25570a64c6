// What a step of a plan would take if one thing were better: which resource bounds it, and what a
// faster link or one more host would buy. Each change is planned anew, so that cut and codecs may
// follow it. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_WHAT_IF_H_
#define ISTHMUS_COORDINATOR_PLANNER_WHAT_IF_H_

#include <string>
#include <vector>

#include "coordinator/planner/planner_input.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int kMostChanges = 40;  // that are planned, in the order below

struct WhatIf {
  std::string change;  // "lab - home at 40 Mbit/s" (its rate now is 20)
  double step_s = 0;
};

// Of `plan`, made from `input`: one daemon more like its fastest one, all round trips halved, every
// pair of daemons that it joins at twice the rate, every daemon it uses twice as fast. The largest
// gain first. What can't be planned is left out.
std::vector<WhatIf> WhatIfs(const PlannerInput& input, const Plan& plan);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_WHAT_IF_H_
