// The validation pass of an executor.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "worker/executor.h"

namespace isthmus::worker {

absl::StatusOr<EvalResult> Executor::RunEval(int64_t step) {
  TraceScope span(o_.tracer, step, {TraceSpan::EVALUATE});
  Begin(step);
  BeginPasses(step);
  int64_t samples = 0;
  for (const Action& action : plan_.mine().eval()) {
    ASSIGN_OR_RETURN(const bool leaves, LeavesEval(action));
    if (leaves) return EvalResult();
    RETURN_IF_ERROR(DoEval(action, &samples));
    ++*o_.progress;
  }
  EvalResult result;
  result.has_loss = plan_.has_head() && samples > 0;
  if (!result.has_loss) return result;
  const StepState& state = states_[step % 2];
  result.loss = state.loss_sum / static_cast<double>(samples * plan_.job().model().context());
  result.accuracy = static_cast<double>(state.correct) / static_cast<double>(samples);
  return result;
}

// A rank that embeds says it, the others of its chain hear it in place of the micro-batch's
// activation and pass it on.
absl::StatusOr<bool> Executor::LeavesEval(const Action& action) {
  if (action.op() != Action::FWD) return false;
  if (!(plan_.embeds() ? o_.leave_eval() : SlotFor(action).leave)) return false;
  if (plan_.has_head()) return true;
  Outbound item = NewFrame(FrameHeader::EVAL_ACTIVATION, step_, action.micro());
  item.header.mutable_vote()->set_stop(true);
  item.tensor = Tensor{plan_.boundary_dims(*plan_.above(), 0), {}};
  RETURN_IF_ERROR(PushTimed(o_.ports[plan_.index_of(*plan_.above())], std::move(item)));
  return true;
}

absl::Status Executor::DoEval(const Action& action, int64_t* samples) {
  switch (action.op()) {
    case Action::RECV:
      return Receive(action);
    case Action::SEND:
      return Send(action);
    case Action::FWD:
      RETURN_IF_ERROR(Forward(action, false));
      *samples += SlotFor(action).ids.size();
      return absl::OkStatus();
    default:
      Fatal(__FILE__, __LINE__, "a training action in a validation pass");  // refused with the plan
  }
}

std::vector<uint32_t> Executor::EvalIds(int micro) const {
  const RecipeSpec& recipe = plan_.job().recipe();
  const int64_t samples = std::min<int64_t>(recipe.eval_samples(), o_.corpus->validation_samples());
  const int64_t begin =
      std::min<int64_t>(samples, static_cast<int64_t>(micro) * recipe.micro_batch());
  const int64_t end = std::min<int64_t>(samples, begin + recipe.micro_batch());
  std::vector<uint32_t> ids;
  for (int64_t i = begin; i < end; ++i)
    ids.push_back(static_cast<uint32_t>(o_.corpus->train_samples() + i));
  return ids;
}

}  // namespace isthmus::worker
