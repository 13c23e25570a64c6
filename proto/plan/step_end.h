// What the lists that end a step are of: shared by those who write and check them (actions.h).
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_STEP_END_H_
#define ISTHMUS_PROTO_PLAN_STEP_END_H_

#include "proto/plan.pb.h"

namespace isthmus {

// What a list ends: a step of all, a step that each replica makes by itself, or the agreement of
// replicas after some of those.
enum class End { kStep, kLocalStep, kAgreement };

// The groups that are reduced there.
inline bool Reduces(End end, const GroupPlan& group) {
  return group.value() != GroupPlan::SLICE &&
         (end == End::kAgreement) == (group.value() == GroupPlan::DIFFERENCE);
}
// The groups whose ranks hand each other slices there.
inline bool Exchanges(End end, const GroupPlan& group) {
  return end == End::kAgreement && group.value() == GroupPlan::SLICE;
}

// Of the boundaries of `rank`, the one that it is the upper, or lower, end of, as an index in
// plan.links; -1: none.
inline int Boundary(const Plan& plan, int rank, bool below) {
  for (int l = 0; l < plan.links_size(); ++l) {
    const LinkPlan& link = plan.links(l);
    if (link.kind() == LinkPlan::BOUNDARY && (below ? link.upper() : link.lower()) == rank)
      return l;
  }
  return -1;
}

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_STEP_END_H_
