// The vote that ends a step: each rank adds its own to those that it hears and passes it on; one
// rank decides, and its decision travels back. A step commits on every rank or on none. Which way
// votes go is in the action lists (proto/plan/actions.h). Thread: pure functions.
#ifndef ISTHMUS_WORKER_SYNC_VOTE_H_
#define ISTHMUS_WORKER_SYNC_VOTE_H_

#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "worker/stage.h"

namespace isthmus::worker {

// What one rank wishes at the end of a step.
struct StepRequests {
  bool stop = false;
  bool checkpoint = false;
  bool busy = false;   // its last checkpoint is still being written
  bool hold = false;   // it would rather not write a local checkpoint yet
  bool finite = true;  // false: it saw a non-finite loss
};

// The votes of two sets of ranks as one. Norms add up in that order.
Vote MergeVotes(const Vote& a, const Vote& b);

// `heard`: of the ranks whose votes came here; null: of none.
Vote CombineVote(const Vote* heard, const GradientNorm& norm, const StepRequests& requests);

// How long a rank whose last checkpoint is still being written waits for it before it votes busy:
// so checkpoints stay on their steps where storing is just slower than a few steps. `due`: one
// falls due in this step. `owed`: one has been due since an earlier step; training goes first then.
absl::Duration PatienceWithStore(bool due, bool owed, absl::Duration step_timeout);

// The rank that decides, from the vote of all. `checkpoint_due`: by the job's interval, or owed
// since a step in which a rank was busy. A stop and the last step write a checkpoint whether or not
// a rank is busy: everyone then waits for its own.
Vote Decide(const Vote& all, bool checkpoint_due, bool last_step);

// The rank that decides, with what it decided else. `due`: a local checkpoint is, by the job's
// interval. It waits for nobody, and is left out where a checkpoint is written anyway.
Vote DecideLocal(Vote decision, bool due);

// Where steps overlap and passes of the next step are under way already: a stop or checkpoint comes
// after that step, and says beforehand that it does.
Vote DrainFirst(Vote decision);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SYNC_VOTE_H_
