// Schedules are data: the action list of each stage of one replica. Builds GPipe and 1F1B and draws
// them (steps that overlap: overlap.h). Both run the backward passes in micro-batch order, so
// gradients add up in the same order whatever the schedule. What ends a step comes after
// (proto/plan/actions.h).
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_SCHEDULE_H_
#define ISTHMUS_PROTO_PLAN_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan/simulation.h"

namespace isthmus {

// The passes of one training step for every stage of a chain (Wiring::Chain: link b joins stages b
// and b + 1): `name` is "gpipe" or "1f1b"; any stages >= 1 and micros >= 1. 1F1B: stage s runs
// warmups[s] forwards (at most micros; empty: the published stages - 1 - s), then one forward and
// one backward in turn, then the rest backwards, so warmups[s] + 1 micro-batches are under way on
// it. InvalidArgument: a wrong name or count, warmups that grow.
absl::StatusOr<std::vector<ActionList>> BuildSchedule(const std::string& name, int stages,
                                                      int micros,
                                                      const std::vector<int>& warmups = {});

// InvalidArgument: no stages or micro-batches, warm-ups that grow.
absl::Status CheckChain(int stages, int micros, const std::vector<int>& warmups);
// Forwards of a stage before its first backward pass, in 1F1B's order.
int WarmUp(int stages, int stage, int micros, const std::vector<int>& warmups);
// A pass of one micro-batch and the frames before and after it. `ahead`: of Action.
void AddForward(int stage, int stages, int micro, FrameHeader::Kind what, int ahead,
                ActionList* out);
void AddBackward(int stage, int stages, int micro, int ahead, ActionList* out);

// One validation pass: receive, forward and send each micro-batch.
std::vector<ActionList> BuildEvalSchedule(int stages, int micros);

// 1F1B's warm-up forwards that keep the slowest part (a stage's compute or a link's direction, T
// seconds a micro-batch) at work. Stage s sends activation j after its backward pass j - warmups[s]
// - 1, and gets gradient j - warmups[s + 1] after the stage above has it: a circle of both stages'
// compute and the link's way there and back, in which warmups[s] - warmups[s + 1] + 1 micro-batches
// pass. So
//   warmups[s] = warmups[s + 1] + ceil((compute of s and s + 1 + kLinkSlack x (transfers and
//   latencies)) / T) - 1, at least 1 more.
// With free links and equal stages these are the published stages - 1 - s. A boundary's queues
// bound the difference to 2 x queue_limit - `votes`, frames that lie between passes where steps
// overlap: beyond it Simulate sees a deadlock.
constexpr double kLinkSlack = 1.25;
std::vector<int> WarmUpForwards(const ScheduleCosts& costs, int stages, int micros, int queue_limit,
                                int votes = 0);

// Seconds a micro-batch takes on the slowest stage or direction of a link: no schedule is faster
// than that times the micro-batches.
double SlowestPart(const ScheduleCosts& costs, int stages);

// The grid of one step, a line a rank: time runs to the right, "F3" and "B3" are passes of
// micro-batch 3, dots are idle. Where steps overlap, small letters are of the step after it. At
// unit costs; at most `max_columns` time slots are drawn. `names`:
// of the ranks [stage 0, stage 1, ...].
std::vector<std::string> SchedulePicture(const std::vector<ActionList>& lists, const Wiring& wiring,
                                         int queue_limit, int max_columns = 60,
                                         const std::vector<std::string>& names = {});

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_SCHEDULE_H_
