// The vote that ends a step: each stage adds its own to the one from above and passes it down the
// chain; stage 0 decides, and its decision travels back up. A step commits on every stage or on
// none. Thread: pure functions.
#ifndef ISTHMUS_WORKER_VOTE_H_
#define ISTHMUS_WORKER_VOTE_H_

#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "worker/stage.h"

namespace isthmus::worker {

// What one stage wishes at the end of a step.
struct StepRequests {
  bool stop = false;
  bool checkpoint = false;
  bool busy = false;   // its last checkpoint is still being written
  bool finite = true;  // false: it saw a non-finite loss
};

// `above` is null on the last stage. Norms add up from the last stage to the first, in that order.
Vote CombineVote(const Vote* above, const GradientNorm& norm, const StepRequests& requests);

// How long a stage whose last checkpoint is still being written waits for it before it votes busy:
// so checkpoints stay on their steps where storing is just slower than a few steps. `due`: one
// falls due in this step. `owed`: one has been due since an earlier step; training goes first then.
absl::Duration PatienceWithStore(bool due, bool owed, absl::Duration step_timeout);

// Stage 0, from the vote of all stages. `checkpoint_due`: by the job's interval, or owed since a
// step in which a stage was busy. A stop and the last step write a checkpoint whether or not a
// stage is busy: everyone then waits for its own.
Vote Decide(const Vote& all, bool checkpoint_due, bool last_step);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_VOTE_H_
