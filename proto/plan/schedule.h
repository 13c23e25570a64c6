// Schedules are data: the action list of each stage. Builds GPipe and 1F1B, checks any list,
// simulates it and draws it. Both schedules run the backward passes in micro-batch order, so
// gradients add up in the same order whatever the schedule. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_SCHEDULE_H_
#define ISTHMUS_PROTO_PLAN_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace isthmus {

using StageActions = std::vector<Action>;

// One training step for every stage: `name` is "gpipe" or "1f1b"; any stages >= 1 and micros >= 1.
// Ends with SYNC and STEP. 1F1B: stage s runs warmups[s] forwards (at most micros; empty: the
// published stages - 1 - s), then one forward and one backward in turn, then the rest backwards, so
// warmups[s] + 1 micro-batches are under way on it. InvalidArgument: a wrong name or count, warmups
// that grow.
absl::StatusOr<std::vector<StageActions>> BuildSchedule(const std::string& name, int stages,
                                                        int micros,
                                                        const std::vector<int>& warmups = {});

// One validation pass: RECV_ACT, FWD, SEND_ACT for each micro-batch.
std::vector<StageActions> BuildEvalSchedule(int stages, int micros);

// What the simulation charges. Vectors of one value a stage, or a boundary (boundary b joins stages
// b and b + 1).
struct ScheduleCosts {
  std::vector<double> forward_s;
  std::vector<double> backward_s;
  std::vector<double> up_s;       // a boundary is busy for so long with one activation
  std::vector<double> down_s;     // ... with one gradient
  std::vector<double> latency_s;  // one way, on top

  // Unit costs: forward 1, backward 2, links free.
  static ScheduleCosts Unit(int stages);
};

// 1F1B's warm-up forwards that keep the slowest part (a stage's compute or a link's direction, T
// seconds a micro-batch) at work. Stage s sends activation j after its backward pass j - warmups[s]
// - 1, and gets gradient j - warmups[s + 1] after the stage above has it: a circle of both stages'
// compute and the link's way there and back, in which warmups[s] - warmups[s + 1] + 1 micro-batches
// pass. So
//   warmups[s] = warmups[s + 1] + ceil((compute of s and s + 1 + kLinkSlack x (transfers and
//   latencies)) / T) - 1, at least 1 more.
// With free links and equal stages these are the published stages - 1 - s. A boundary's queues
// bound the difference to 2 x queue_limit: beyond it CheckSchedule sees a deadlock.
constexpr double kLinkSlack = 1.25;
std::vector<int> WarmUpForwards(const ScheduleCosts& costs, int stages, int micros,
                                int queue_limit);

// Seconds a micro-batch takes on the slowest stage or direction of a link: no schedule is faster
// than that times the micro-batches.
double SlowestPart(const ScheduleCosts& costs, int stages);

struct TimedAction {
  Action action;
  double start_s = 0;
  double end_s = 0;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> stages;
  double makespan_s = 0;       // until the last backward pass ends
  std::vector<double> busy_s;  // compute a stage
};

// Runs the lists against each other; a boundary holds at most `queue_limit` micro-batches in each
// direction between the two compute threads. FailedPrecondition names the stage and action where
// the lists deadlock, do not match, or break an order (FWD before RECV_ACT, ...).
absl::StatusOr<Simulation> SimulateSchedule(const std::vector<StageActions>& schedule,
                                            int queue_limit, const ScheduleCosts& costs);

// OK if every receive has its send, every micro-batch is forwarded and backwarded once on every
// stage, and nothing deadlocks at `queue_limit`.
absl::Status CheckSchedule(const std::vector<StageActions>& schedule, int micros, int queue_limit);

// The grid, a line a stage: time runs to the right, "F3" and "B3" are passes of micro-batch 3, dots
// are idle. At unit costs; at most `max_columns` time slots are drawn.
std::vector<std::string> SchedulePicture(const std::vector<StageActions>& schedule, int queue_limit,
                                         int max_columns = 60);

std::string ActionName(const Action& action);  // "RECV_ACT 3"

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_SCHEDULE_H_
