// Steps that overlap (strategy.schedule: overlap; PipeDream-2BW's idea, arXiv 2006.09503, with one
// step's delay on every stage alike): while the backward passes of step t end, the forward passes
// of step t + 1 begin, with the weights before the update of t,
//
//   w(t + 1) = w(t) - update(gradient at w(t - 1))
//
// so no stage is idle between two steps, and votes, decisions and the tied embedding's exchange
// travel while others compute.
//
// A rank follows one list for each step t. It ends with the STEP of t; actions with `ahead` 1 are
// those of step t + 1. All forward passes are ahead: those of step t were in the list of t - 1.
// Before the first step, and after a step that is drained, a rank first fills: it follows the
// actions ahead of the list for step t - 1, alone. A step is drained where nothing may be under way
// after it (a checkpoint, a validation pass, the end): its actions ahead are left out.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_OVERLAP_H_
#define ISTHMUS_PROTO_PLAN_OVERLAP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"
#include "proto/plan/simulation.h"

namespace isthmus {

bool Overlaps(const std::string& schedule);
bool Overlaps(const JobSpec& job);
// Frames of votes, decisions and hashes that may lie between the passes of a link's queues.
int VoteFrames(const std::string& schedule);

// The passes of a step on one stage, and where votes and reductions go between them. Every stage of
// a chain has as many passes of `before_vote` on its links, so that frames meet in order.
struct OverlapPasses {
  ActionList ending;       // the last backward passes of step t, forward passes of t + 1 between
  ActionList before_vote;  // forward and backward passes of t + 1 while reductions travel
  ActionList after_vote;   // ... while votes and decisions travel
};

// Of each stage of a chain, as BuildSchedule: stage s runs warmups[s] forwards (none given: stages
// - 1 - s) before it has a backward pass to run. `reduces`: something is reduced before the vote
// that should not be waited for; half of the passes that there are go before the vote then.
absl::StatusOr<std::vector<OverlapPasses>> BuildOverlap(int stages, int micros,
                                                        const std::vector<int>& warmups,
                                                        bool reduces);

// The lists of a chain without groups, with its votes and decisions: for simulations.
absl::StatusOr<std::vector<ActionList>> OverlapChain(int stages, int micros,
                                                     const std::vector<int>& warmups, bool reduces);

// Actions of one list one after the other as they are done in `steps` steps, filled before the
// first and drained at the last; `ahead` is then the step, from 0 on. A list without actions ahead
// is repeated.
ActionList Unroll(const ActionList& list, int steps);

// Seconds of a step's passes on a chain, whatever the schedule: until its last backward pass ends,
// or, where steps overlap, from one optimiser step to the next, votes among it. `schedule` is
// "overlap" or one of BuildSchedule's.
absl::StatusOr<double> StepSeconds(const std::string& schedule, int stages, int micros,
                                   const std::vector<int>& warmups, int queue_limit,
                                   const ScheduleCosts& costs);

// Unroll for simulations, in which a frame's micro-batch tells it from those of other steps.
std::vector<ActionList> UnrollAll(const std::vector<ActionList>& lists, int steps);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_OVERLAP_H_
