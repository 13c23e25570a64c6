// Schedules are data: the action list of each stage. Builds GPipe and 1F1B, checks any list, simulates it and draws it.
// Both schedules run the backward passes in micro-batch order, so gradients add up in the same order whatever the schedule.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_SCHEDULE_H_
#define ISTHMUS_PROTO_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace isthmus {

using StageActions = std::vector<Action>;

// One training step for every stage: `name` is "gpipe" or "1f1b"; any stages >= 1 and micros >= 1. Ends with SYNC and STEP.
// 1F1B: stage s runs min(micros, stages - 1 - s) warm-up forwards, then one forward and one backward in turn, then the rest backwards.
absl::StatusOr<std::vector<StageActions>> BuildSchedule(const std::string& name, int stages, int micros);

// One validation pass: RECV_ACT, FWD, SEND_ACT for each micro-batch.
std::vector<StageActions> BuildEvalSchedule(int stages, int micros);

// What the simulation charges. Vectors of one value a stage, or a boundary (boundary b joins stages b and b + 1).
struct ScheduleCosts {
  std::vector<double> forward_s;
  std::vector<double> backward_s;
  std::vector<double> up_s;        // a boundary is busy for so long with one activation
  std::vector<double> down_s;      // ... with one gradient
  std::vector<double> latency_s;   // one way, on top

  // Unit costs: forward 1, backward 2, links free.
  static ScheduleCosts Unit(int stages);
};

struct TimedAction {
  Action action;
  double start_s = 0;
  double end_s = 0;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> stages;
  double makespan_s = 0;           // until the last backward pass ends
  std::vector<double> busy_s;      // compute a stage
};

// Runs the lists against each other; a boundary holds at most `queue_limit` micro-batches in each direction between the two compute threads.
// FailedPrecondition names the stage and action where the lists deadlock, do not match, or break an order (FWD before RECV_ACT, ...).
absl::StatusOr<Simulation> SimulateSchedule(const std::vector<StageActions>& schedule, int queue_limit, const ScheduleCosts& costs);

// OK if every receive has its send, every micro-batch is forwarded and backwarded once on every stage, and nothing deadlocks at `queue_limit`.
absl::Status CheckSchedule(const std::vector<StageActions>& schedule, int micros, int queue_limit);

// The grid, a line a stage: time runs to the right, "F3" and "B3" are passes of micro-batch 3, dots are idle.
// At unit costs; at most `max_columns` time slots are drawn.
std::vector<std::string> SchedulePicture(const std::vector<StageActions>& schedule, int queue_limit, int max_columns = 60);

std::string ActionName(const Action& action);  // "RECV_ACT 3"

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_SCHEDULE_H_
