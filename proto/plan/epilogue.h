// The epilogue of a step (Optimus-CC, arXiv 2301.09830): the gradients that a stage receives once
// it has no forward passes left. Nothing hides their way; the others' is hidden by compute, if the
// link is fast enough. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_EPILOGUE_H_
#define ISTHMUS_PROTO_PLAN_EPILOGUE_H_

#include <vector>

#include "proto/plan/simulation.h"

namespace isthmus {

// Of the list of the rank that receives gradients on `link` (its lower end), the micro-batches of
// the epilogue: those received after its last forward pass, but for the first one, whose way that
// pass hides. So w of them after w warm-up forwards in 1F1B (P - 1 - s with the published ones of
// stage s of P), and all but the first in gpipe.
std::vector<int> EpilogueMicros(const ActionList& receiver, int link);

// Of a BOUNDARY of the plan; empty: its codec codes all gradients (LinkPlan.epilogue is not set).
std::vector<int> EpilogueMicros(const Plan& plan, const LinkPlan& link);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_EPILOGUE_H_
