// What replicas with local steps do to agree on the weights (proto/plan/agreements.h).
#include "base/status.h"
#include "proto/plan/agreements.h"
#include "worker/executor.h"

namespace isthmus::worker {

// What is due after `step` of the agreement that is next, or under way.
absl::Status Executor::Agree(int64_t step) {
  const Vote step_decision = result_.decision;
  agreeing_ = true;
  states_[step % 2].finite = true;
  wishes_.reset();
  heard_.reset();
  for (const Action& action : plan_.mine().agree()) {
    if (!agreement_.Has(plan_.plan(), action, step)) continue;
    RETURN_IF_ERROR(Do(action));
    ++*o_.progress;
  }
  if (step < agreement_.apply) return absl::OkStatus();
  const bool all = result_.decision.drain();
  agreement_ = NextAgreement(plan_.plan(), step + 1, all);
  for (const Port& port : o_.ports) {
    if (port.in != nullptr && plan_.streams()) port.in->Agreed(all);
  }
  result_.decision.set_commit(step_decision.commit());  // for the record of the step
  result_.decision.set_norm_sq(step_decision.norm_sq());
  return absl::OkStatus();
}

// What the replicas agreed on becomes the weights of all; or, if it is not finite, those they last
// agreed on come back. Of a fragment that was under way a replica keeps a share of its own.
absl::Status Executor::Outer() {
  ScopedTimer timer(&result_.times.sync_ns);
  const double mix = agreement_.of_all() ? 0 : plan_.job().strategy().fragment_mix();
  for (const int g : plan_.groups()) {
    const GroupPlan& group = plan_.plan().groups(g);
    if (group.value() == GroupPlan::DIFFERENCE && agreement_.Covers(group))
      RETURN_IF_ERROR(groups_[g]->Settle(result_.decision.commit(), mix, o_.stage));
  }
  return TellCodecs(result_.decision.checkpoint());
}

}  // namespace isthmus::worker
