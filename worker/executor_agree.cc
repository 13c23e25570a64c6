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
  equal_ = agreement_.of_all();
  const bool all = result_.decision.drain();
  agreement_ = NextAgreement(plan_.plan(), step + 1, all);
  for (const Port& port : o_.ports) {
    if (port.in != nullptr && plan_.agreements_differ()) port.in->Agreed(all);
  }
  result_.decision.set_commit(step_decision.commit());  // for the record of the step
  result_.decision.set_norm_sq(step_decision.norm_sq());
  return absl::OkStatus();
}

absl::Status Executor::Exchange(const Action& action) {
  if (slices_ == nullptr) return absl::InternalError("an exchange of slices, and no subnetworks");
  ScopedTimer timer(&result_.times.sync_ns);
  ScopedTimer group_timer(&result_.groups[action.group()].reduce_ns);
  TraceScope span(o_.tracer, step_, {TraceSpan::REDUCE, -1, nullptr, action.group()});
  const GroupWires wires = WiresOf(action.group());
  if (action.op() == Action::DEAL) return slices_->Deal(step_, agreement_.merged, wires);
  ASSIGN_OR_RETURN(const bool finite, slices_->Merge(step_, agreement_.merged, wires));
  StepState& state = states_[step_ % 2];
  state.finite = state.finite && finite;
  return absl::OkStatus();
}

// What the replicas agreed on becomes the weights of all; or, if it is not finite, those they last
// agreed on come back. Of a fragment that was under way a replica keeps a share of its own.
absl::Status Executor::Outer() {
  ScopedTimer timer(&result_.times.sync_ns);
  // The slices have gone to other ranks already: there is no way back.
  if (plan_.deals() && !result_.decision.commit())
    return absl::FailedPreconditionError(
        "what the subnetworks learnt in this round is not finite: continue from the last "
        "checkpoint with a lower recipe.learning_rate, or a milder compression.gradients");
  const double mix = agreement_.of_all() ? 0 : plan_.job().strategy().fragment_mix();
  for (const int g : plan_.groups()) {
    const GroupPlan& group = plan_.plan().groups(g);
    if (group.value() == GroupPlan::DIFFERENCE && agreement_.Covers(group))
      RETURN_IF_ERROR(groups_[g]->Settle(result_.decision.commit(), mix, o_.stage));
  }
  return TellCodecs();
}

}  // namespace isthmus::worker
