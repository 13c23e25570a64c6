#include "worker/vote.h"

#include <cmath>

namespace isthmus::worker {

Vote CombineVote(const Vote* above, const GradientNorm& norm, const StepRequests& requests) {
  Vote vote;
  if (above != nullptr) vote = *above;
  if (above == nullptr) vote.set_finite(true);
  vote.set_commit(false);
  vote.set_norm_sq(vote.norm_sq() + norm.sum_squares);
  vote.set_finite(vote.finite() && norm.finite && requests.finite && std::isfinite(vote.norm_sq()));
  vote.set_stop(vote.stop() || requests.stop);
  vote.set_checkpoint(vote.checkpoint() || requests.checkpoint);
  vote.set_busy(vote.busy() || requests.busy);
  return vote;
}

absl::Duration PatienceWithStore(bool due, bool owed, absl::Duration step_timeout) {
  return due && !owed ? step_timeout / 4 : absl::ZeroDuration();
}

Vote Decide(const Vote& all, bool checkpoint_due, bool last_step) {
  Vote decision = all;
  decision.set_commit(all.finite());
  const bool wanted = checkpoint_due || all.checkpoint();
  decision.set_checkpoint(all.stop() || last_step || (wanted && !all.busy()));
  return decision;
}

}  // namespace isthmus::worker
