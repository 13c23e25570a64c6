#include "coordinator/planner/follow.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/planner.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/local_checkpoints.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kMostChanges = 4;  // in one sentence

bool SamePlaces(const Plan& a, const Plan& b) {
  return std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(), b.ranks().end(),
                    [](const RankPlan& x, const RankPlan& y) {
                      return x.node_id() == y.node_id() && x.first_layer() == y.first_layer() &&
                             x.end_layer() == y.end_layer();
                    });
}

std::string Places(const Plan& plan) {
  return absl::StrJoin(plan.ranks(), ", ", [](std::string* out, const RankPlan& rank) {
    absl::StrAppend(out, rank.node_name(), " ", rank.end_layer() - rank.first_layer());
  });
}

// "b0 forward quant(4, token) in place of none, backward ..."
std::string Changes(const Plan& was, const Plan& is) {
  if (!SamePlaces(was, is))
    return absl::StrCat("layers on ", Places(is), " in place of ", Places(was));
  std::vector<std::string> changes;
  const auto add = [&](const std::string& what, const std::string& before, const std::string& now) {
    if (before != now) changes.push_back(absl::StrCat(what, " ", now, " in place of ", before));
  };
  for (int l = 0; l < std::min(was.links_size(), is.links_size()); ++l) {
    if (is.links(l).kind() != LinkPlan::BOUNDARY) continue;
    add(absl::StrCat(is.links(l).id(), " forward"), FormatCodec(was.links(l).forward()),
        FormatCodec(is.links(l).forward()));
    add(absl::StrCat(is.links(l).id(), " backward"), FormatCodec(was.links(l).backward()),
        FormatCodec(is.links(l).backward()));
  }
  add("tied", was.job().compression().tied(), is.job().compression().tied());
  add("gradients", was.job().compression().gradients(), is.job().compression().gradients());
  if (changes.empty()) return "other warm-ups or shares";
  const size_t more = changes.size() - std::min(changes.size(), kMostChanges);
  changes.resize(changes.size() - more);
  return absl::StrCat(absl::StrJoin(changes, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// What the codecs of the new plan cost beside their price, in words.
std::string LosesLocal(const Plan& was, const Plan& is) {
  return LocalEvery(was) > 0 && LocalEvery(is) == 0
             ? absl::StrCat("; without local checkpoints from then on, for ", WhyNoLocal(is))
             : "";
}

// Its checkpoint is stored, its sessions start; where layers move, they are fetched.
double MoveSeconds(const FollowInput& in, const Plan& next) {
  if (in.move_s > 0 && SamePlaces(in.planner.previous, next)) return in.move_s;
  const double start_s = in.start_s > 0 ? in.start_s : kStartSeconds;
  const double stored_s = CheckpointSeconds(in.planner.previous, in.planner.paths, true);
  const double fetched_s =
      SamePlaces(in.planner.previous, next) ? 0 : CheckpointSeconds(next, in.planner.paths, false);
  return kTurnSeconds + start_s + stored_s + fetched_s;
}

}  // namespace

FollowDecision DecideFollow(const FollowInput& in) {
  const absl::StatusOr<PlannedJob> planned = MakePlan(in.planner);
  if (!planned.ok())
    return {false, absl::StrCat("today's plan stays: ", planned.status().message())};
  if (planned->previous_cost_s <= 0)
    return {false, "today's plan stays: it can't be priced by the new figures"};
  const double share = planned->cost_s / planned->previous_cost_s;
  if (share > 1 - kLeastGain) {
    return {false, absl::StrCat("today's plan stays: no other one is a twentieth better (the best "
                                "costs ",
                                FormatShare(share), " of it, as predicted)")};
  }
  const auto steps = static_cast<double>(in.planner.job.recipe().steps() - in.planner.start_step);
  const double gain_s = in.step_s * (1 - share) * steps;
  const double price_s = MoveSeconds(in, planned->plan);
  const std::string gain = absl::StrCat(
      FormatSeconds(gain_s),
      steps == 1 ? std::string(" over the last step")
                 : absl::StrCat(" over the last ", static_cast<int64_t>(steps), " steps"));
  const std::string costs = absl::StrCat("the move costs about ", FormatSeconds(price_s));
  const bool moves = gain_s > kMovePays * price_s;
  return {moves, moves ? absl::StrCat("a new plan is taken: a step costs ", FormatShare(share),
                                      " of what it does, which gains ", gain, ", and ", costs, " (",
                                      Changes(in.planner.previous, planned->plan),
                                      LosesLocal(in.planner.previous, planned->plan), ")")
                       : absl::StrCat("today's plan stays: a new one would gain ", gain, ", and ",
                                      costs, " (it has to gain ", kMovePays, " times as much)")};
}

}  // namespace isthmus::coordinator
