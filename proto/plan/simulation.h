// Runs the action lists of all ranks against each other, in simulated time: what a step takes, and
// whether every list can come to its end. Thread: pure functions.
#ifndef ISTHMUS_PROTO_PLAN_SIMULATION_H_
#define ISTHMUS_PROTO_PLAN_SIMULATION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/plan.pb.h"
#include "proto/plan/wiring.h"

namespace isthmus {

using ActionList = std::vector<Action>;

// What the simulation charges. Vectors of one value a rank, or a link. Frames of votes, decisions
// and hashes are free. A backward pass that stands in several pieces in its list takes equal parts
// of its time.
struct ScheduleCosts {
  std::vector<double> forward_s;
  std::vector<double> backward_s;
  std::vector<double> up_s;       // a link is busy for so long with one activation
  std::vector<double> down_s;     // ... with one gradient
  std::vector<double> latency_s;  // one way, on top
  // Of links whose gradients differ, by micro-batch, in place of down_s; a link's, or all, may be
  // empty.
  std::vector<std::vector<double>> gradient_s;
  // By group: a link is busy for so long with one contribution or sum, either way; latency on top.
  // Empty: they are free.
  std::vector<double> group_s;

  double Gradient(size_t link, size_t micro) const;

  // Unit costs: forward 1, backward 2, links free.
  static ScheduleCosts Unit(const Wiring& wiring);
};

struct TimedAction {
  Action action;
  double start_s = 0;
  double end_s = 0;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> ranks;
  double makespan_s = 0;       // until the last backward pass ends
  double end_s = 0;            // until the last list does
  std::vector<double> busy_s;  // compute a rank
};

// A link that has no limit of its own holds at most `queue_limit` frames in each direction between
// the two compute threads.
// FailedPrecondition names the rank and action where the lists deadlock or do not match.
absl::StatusOr<Simulation> Simulate(const std::vector<ActionList>& lists, const Wiring& wiring,
                                    int queue_limit, const ScheduleCosts& costs);

// "RECV activation 3 on b0", "FWD 3", "REDUCE tied".
std::string ActionName(const Action& action, const Wiring& wiring);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_SIMULATION_H_
