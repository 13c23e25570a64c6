// What the links of a plan carry in a step, as its codecs make it of tensors. Zstd is not counted.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_LINK_LOAD_H_
#define ISTHMUS_COORDINATOR_PLANNER_LINK_LOAD_H_

#include <vector>

#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// Of a boundary, one direction, in a step.
double BoundaryBytes(const Plan& plan, const LinkPlan& link, bool forward);
// Of all ranks of the group together, in the mean of a step.
double GroupBytes(const Plan& plan, const GroupPlan& group);

// Of a pair of ranks: all that they send each other in a step.
struct LinkLoad {
  int lower = 0, upper = 0;       // ranks
  double up_bytes = 0, up_s = 0;  // `up`: from lower to upper; seconds at the link's rate
  double down_bytes = 0, down_s = 0;
  double bytes() const { return up_bytes + down_bytes; }
  double busy_s() const { return up_s < down_s ? down_s : up_s; }
};

// Every pair that has a link, in order of the links. A group's bytes are spread evenly over its
// pairs, and both ways.
std::vector<LinkLoad> LinkLoads(const Plan& plan);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_LINK_LOAD_H_
