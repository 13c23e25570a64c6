#include "worker/sync/vote.h"

#include <cmath>

namespace isthmus::worker {

Vote MergeVotes(const Vote& a, const Vote& b) {
  Vote vote;
  vote.set_norm_sq(a.norm_sq() + b.norm_sq());
  vote.set_finite(a.finite() && b.finite() && std::isfinite(vote.norm_sq()));
  vote.set_stop(a.stop() || b.stop());
  vote.set_checkpoint(a.checkpoint() || b.checkpoint());
  vote.set_busy(a.busy() || b.busy());
  vote.set_hold(a.hold() || b.hold());
  return vote;
}

Vote CombineVote(const Vote* heard, const GradientNorm& norm, const StepRequests& requests) {
  Vote own;
  own.set_norm_sq(norm.sum_squares);
  own.set_finite(norm.finite && requests.finite && std::isfinite(norm.sum_squares));
  own.set_stop(requests.stop);
  own.set_checkpoint(requests.checkpoint);
  own.set_busy(requests.busy);
  own.set_hold(requests.hold);
  return heard != nullptr ? MergeVotes(*heard, own) : own;
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

Vote DecideLocal(Vote decision, bool due) {
  decision.set_local(due && !decision.hold() && !decision.checkpoint() && !decision.stop());
  return decision;
}

Vote DrainFirst(Vote decision) {
  decision.set_drain(decision.stop() || decision.checkpoint());
  decision.set_stop(false);
  decision.set_checkpoint(false);
  decision.set_local(false);
  return decision;
}

}  // namespace isthmus::worker
