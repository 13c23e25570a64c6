// The predicted step of a placement: 1F1B's warm-up forwards, the schedule simulated on its
// daemons and links (proto/plan/schedule.h), the exchange of the tied embedding, the vote, the
// optimiser. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_STEP_TIME_H_
#define ISTHMUS_COORDINATOR_PLANNER_STEP_TIME_H_

#include "absl/status/status.h"
#include "coordinator/planner/placement.h"

namespace isthmus::coordinator {

// More micro-batches under way than 1F1B's own, so that the links' transfers and latencies pass
// while others are computed: for the steps that most of the run consists of, first visits or later
// ones of delta codecs. Within strategy.in_flight and memory; the bytes of the stages grow.
// `of_all`: of all that may be the best where steps overlap, at up to 20 simulations; else of
// three.
void ChooseWarmUps(const JobSpec& job, bool of_all, Placement* p);

// Seconds of votes and reductions that pass while others compute: where steps overlap, half of the
// passes that lie between the end of a step and its optimiser.
double HiddenSync(const JobSpec& job, const Placement& p);

// Of boundaries that code an epilogue alone, how many gradients of a step that are, with the
// placement's warm-ups.
absl::Status CountEpilogues(const JobSpec& job, Placement* p);

// Sets how long before the pipeline each stage's last backward pass ends, where steps do not
// overlap.
absl::Status SetAhead(const JobSpec& job, Placement* p);

// Sets the times of a step. With `other`, also the time of the schedule that the job does not use.
absl::Status PriceStep(const JobSpec& job, bool other, Placement* p);

// The codec of the tied embedding's gradient (compression.tied, `auto`: the one that takes least)
// and the seconds of the exchange and the vote.
absl::Status PriceTied(const JobSpec& job, const LinkIndex& links, Placement* p);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_STEP_TIME_H_
