#include "proto/plan/agreements.h"

#include <algorithm>

#include "proto/plan/deal.h"

namespace isthmus {
namespace {

int Fragments(const JobSpec& job) { return std::max(1, job.strategy().fragments()); }

int64_t LocalSteps(const Plan& plan) { return plan.job().strategy().local_steps(); }

bool DueAfter(const Plan& plan, int64_t step, int64_t every) {
  if (every <= 0) return false;
  if (!MakesLocalSteps(plan)) return (step + 1) % every == 0;
  if (!RoundEndsAfter(plan, step)) return false;
  const int64_t before = step - step % LocalSteps(plan);  // steps done at the last time
  return (step + 1) / every > before / every;
}

// All must hold the same weights after `step`, as the plan alone says.
bool AllAgreeAfter(const Plan& plan, int64_t step) {
  if (!RoundEndsAfter(plan, step)) return false;
  return !AgreementsDiffer(plan) || step + 1 >= plan.job().recipe().steps() ||
         EvalAfter(plan, step) || CheckpointAfter(plan, step);
}

// The end of the first round that ends at `from` or later.
int64_t EndOfRound(const Plan& plan, int64_t from) {
  const int64_t round = LocalSteps(plan);
  return std::min((from / round + 1) * round, plan.job().recipe().steps()) - 1;
}

// Steps of a round after which a fragment is offered.
int64_t Offset(const Plan& plan, int fragment) {
  return (fragment + 1) * LocalSteps(plan) / Fragments(plan.job());
}

}  // namespace

bool MakesLocalSteps(const Plan& plan) { return plan.replicas_size() > 1 && LocalSteps(plan) > 1; }

int FragmentOf(const JobSpec& job, int layer) { return layer % Fragments(job); }

bool Streams(const Plan& plan) {
  const StrategySpec& s = plan.job().strategy();
  return MakesLocalSteps(plan) && (s.fragments() > 1 || s.fragment_delay() > 0);
}

bool AgreementsDiffer(const Plan& plan) { return Streams(plan) || Deals(plan); }

bool RoundEndsAfter(const Plan& plan, int64_t step) {
  return MakesLocalSteps(plan) &&
         ((step + 1) % LocalSteps(plan) == 0 || step + 1 == plan.job().recipe().steps());
}

bool EvalAfter(const Plan& plan, int64_t step) {
  const RecipeSpec& r = plan.job().recipe();
  if (r.eval_samples() <= 0) return false;
  return step + 1 == r.steps() || DueAfter(plan, step, r.eval_every());
}

bool CheckpointAfter(const Plan& plan, int64_t step) {
  return DueAfter(plan, step, plan.job().checkpoint().every());
}

bool Agreement::Has(const Plan& plan, const Action& action, int64_t step) const {
  switch (action.op()) {
    case Action::OFFER:
      return step == offer && Covers(plan.groups(action.group()));
    case Action::REDUCE:
      return step == reduce && Covers(plan.groups(action.group()));
    case Action::COLLECT:
      return step == apply && Covers(plan.groups(action.group()));
    default:
      return step == apply;
  }
}

Agreement NextAgreement(const Plan& plan, int64_t from, bool all) {
  if (!MakesLocalSteps(plan) || from >= plan.job().recipe().steps()) return {};
  const StrategySpec& s = plan.job().strategy();
  // That of all: of the next two rounds, since no fragment of a later one comes before.
  int64_t whole = EndOfRound(plan, from);
  if (Deals(plan)) return {-1, whole, whole, whole, all || AllAgreeAfter(plan, whole)};
  if (!all && !AllAgreeAfter(plan, whole)) whole = EndOfRound(plan, whole + 1);
  const bool sure = all || AllAgreeAfter(plan, whole);
  const int64_t round = from - from % s.local_steps();
  for (int64_t begin : {round, round + s.local_steps()}) {
    for (int p = 0; Streams(plan) && p < Fragments(plan.job()); ++p) {
      const int64_t offer = begin + Offset(plan, p) - 1, apply = offer + s.fragment_delay();
      if (offer < from) continue;
      if (apply >= (sure ? whole : plan.job().recipe().steps() - 1)) break;
      return {p, offer, offer + (s.fragment_delay() + 1) / 2, apply};
    }
  }
  return {-1, whole, whole, whole};
}

ActionList AgreementsOfRounds(const Plan& plan, int rank) {
  ActionList list;
  const auto follow = [&](const Agreement& next) {
    for (int64_t step = next.offer; step <= next.apply && step >= 0; ++step) {
      for (const Action& a : plan.ranks(rank).agree()) {
        if (next.Has(plan, a, step)) list.push_back(a);
      }
    }
  };
  Agreement next = NextAgreement(plan, 0, false);
  while (next.apply >= 0 && next.apply < 2 * LocalSteps(plan)) {
    follow(next);
    next = NextAgreement(plan, next.apply + 1, false);
  }
  follow(NextAgreement(plan, std::max<int64_t>(0, plan.job().recipe().steps() - 1), true));
  return list;
}

}  // namespace isthmus
