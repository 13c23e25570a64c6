#include "coordinator/planner/local_checkpoints.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "proto/model/model_cost.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/local_checkpoints.h"

namespace isthmus::coordinator {
namespace {

// Weights and the optimiser's two moments, in fp32.
double PartBytes(const Plan& plan, const RankPlan& rank) {
  return 3.0 *
         static_cast<double>(StageCost(plan.job().model(), rank.first_layer(), rank.end_layer(), 1)
                                 .parameter_bytes());
}

// -1: it can dial no other daemon of the plan, as far as was measured.
int BuddyOf(const LinkIndex& links, const Plan& plan, int rank) {
  int best = -1;
  double rate = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (r == rank) continue;
    const LinkIndex::Link& link = links.Get(plan.ranks(rank).node_id(), plan.ranks(r).node_id());
    if (!link.usable || !link.dials || link.rate_bits_per_s <= rate) continue;
    best = r;
    rate = link.rate_bits_per_s;
  }
  return best;
}

void PlanBuddies(const LinkIndex& links, Plan* plan, LocalCheckpointWords* words) {
  std::vector<std::string> copies, alone;
  double bytes = 0, longest_s = 0;
  for (int r = 0; r < plan->ranks_size(); ++r) {
    if (!PutsParts(*plan, r)) continue;
    RankPlan* rank = plan->mutable_ranks(r);
    const int buddy = BuddyOf(links, *plan, r);
    if (buddy < 0) {
      alone.push_back(rank->node_name());
      continue;
    }
    rank->set_buddy(buddy + 1);
    const double part = PartBytes(*plan, *rank);
    const double rate = links.Get(rank->node_id(), plan->ranks(buddy).node_id()).rate_bits_per_s;
    bytes += part;
    longest_s = std::max(longest_s, part * 8 / rate);
    copies.push_back(absl::StrCat(plan->ranks(buddy).node_name(), " of ", rank->node_name(), "'s (",
                                  FormatBytes(part), ", ", FormatSeconds(part * 8 / rate), " at ",
                                  FormatRate(rate), ")"));
  }
  if (!copies.empty()) {
    words->explanation.push_back(
        absl::StrCat("buddies keep copies of local checkpoints: ", absl::StrJoin(copies, ", "),
                     "; together they send ", FormatBytes(bytes),
                     " beside the steps, and the next one waits until the copies of "
                     "the last one are there, ",
                     FormatSeconds(longest_s), " or longer"));
  }
  if (!alone.empty()) {
    words->warnings.push_back(absl::StrCat(
        "no buddy keeps a copy of what lies on ", absl::StrJoin(alone, ", "),
        plan->ranks_size() == 1
            ? ": it is the only daemon of the plan"
            : ": it can dial no other daemon of the plan, or no such link is measured yet",
        ". If it is lost for good, the job goes on from the newest stored checkpoint"));
  }
}

}  // namespace

LocalCheckpointWords PlanLocalCheckpoints(const LinkIndex& links, Plan* plan) {
  LocalCheckpointWords words;
  if (plan->job().checkpoint().local() == 0) return words;
  if (std::string why = WhyNoLocal(*plan); !why.empty()) {
    words.explanation.push_back(absl::StrCat("local checkpoints: none, for ", why));
    if (plan->job().checkpoint().buddies() > 0)
      words.warnings.push_back(absl::StrCat(
          "no buddy keeps a copy of anything: there are no local checkpoints, for ", why));
    return words;
  }
  if (const int64_t steps = plan->job().recipe().steps(); LocalEvery(*plan) > steps) {
    words.explanation.push_back(absl::StrCat("local checkpoints: none, for the job has ", steps,
                                             " steps (checkpoint.local ", LocalEvery(*plan), ")"));
    return words;
  }
  double most = 0;
  for (int r = 0; r < plan->ranks_size(); ++r) {
    if (PutsParts(*plan, r)) most = std::max(most, PartBytes(*plan, plan->ranks(r)));
  }
  const int64_t every = LocalEvery(*plan);
  const std::string when =
      PacesLocal(*plan)
          ? absl::StrCat("as often as writing takes at most ", "a ", kPacedShare, "th of the time")
          : absl::StrCat("after every ", every == 1 ? "step" : absl::StrCat(every, " steps"));
  double a_second = most / std::max(1e-3, plan->predicted_step_s() * static_cast<double>(every));
  if (PacesLocal(*plan)) a_second = std::min(a_second, kPacedBytesPerSecond);
  words.explanation.push_back(absl::StrCat(
      "local checkpoints: ", when, MakesLocalSteps(*plan) ? ", where replicas agree" : "",
      ", each at most ", FormatBytes(most), " on a daemon's own disk, at most ",
      FormatBytes(a_second * 86400),
      " a day: one that is killed and comes back costs the steps since the last one"));
  if (plan->job().checkpoint().buddies() > 0) PlanBuddies(links, plan, &words);
  return words;
}

}  // namespace isthmus::coordinator
