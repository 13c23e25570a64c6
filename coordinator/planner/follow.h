// Whether a running job takes a new plan now that its links carry something else: it does when what
// the steps that are left gain pays for the move 1.5 times over, and a step gets at least a
// twentieth cheaper. Today's plan is priced by the same figures as the new one, with what its
// codecs keep; the price of higher losses (codec_choice.h) counts as in every plan, and the gain is
// in seconds of steps as they were measured. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_FOLLOW_H_
#define ISTHMUS_COORDINATOR_PLANNER_FOLLOW_H_

#include <string>

#include "coordinator/planner/planner_input.h"

namespace isthmus::coordinator {

constexpr double kMovePays = 1.5;    // gain / price of a move
constexpr double kLeastGain = 0.05;  // of a step: less can't be told from what predictions err
constexpr double kStartSeconds = 5;  // until sessions run, where it was not seen yet
constexpr double kTurnSeconds = 4;   // until all have ended theirs and a new plan is made: measured

struct FollowInput {
  PlannerInput planner;  // as for a resume now: `previous` is today's plan; follows
  double step_s = 0;     // measured
  double start_s = 0;    // what the sessions took to start; 0: not known
  double move_s = 0;     // what the job's last move took; 0: not known
};

struct FollowDecision {
  bool moves = false;
  std::string words;
};

FollowDecision DecideFollow(const FollowInput& input);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_FOLLOW_H_
