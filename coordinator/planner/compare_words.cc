#include "coordinator/planner/compare_words.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/link_load.h"
#include "coordinator/planner/phase_words.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

using Names = std::vector<std::string>;

Names NodesOf(const Plan& plan) {
  Names names;
  for (const RankPlan& rank : plan.ranks()) names.push_back(rank.node_name());
  return names;
}

std::vector<int> LayersOf(const Plan& plan) {
  std::vector<int> layers;
  for (const RankPlan& rank : plan.ranks())
    if (rank.replica() == 0) layers.push_back(rank.end_layer() - rank.first_layer());
  return layers;
}

Names Without(const Names& names, const Names& others) {
  const std::set<std::string> out(others.begin(), others.end());
  Names left;
  for (const std::string& name : names)
    if (out.count(name) == 0) left.push_back(name);
  return left;
}

std::string Joined(const Names& names) { return absl::StrJoin(names, ", "); }

// "3, 3, 2": of a stage each.
std::string CutWords(const std::vector<int>& layers) {
  const bool alike =
      std::all_of(layers.begin(), layers.end(), [&](int n) { return n == layers.front(); });
  return alike ? absl::StrCat(layers.front(), " on each stage") : absl::StrJoin(layers, ", ");
}

// From `ours`.
Names Differences(const Plan& plan, const Plan& ours) {
  Names out;
  if (ShapeWords(plan) != ShapeWords(ours))
    out.push_back(absl::StrCat(ShapeWords(plan), ", not ", ShapeWords(ours)));
  const Names mine = NodesOf(plan), theirs = NodesOf(ours);
  const Names more = Without(mine, theirs), fewer = Without(theirs, mine);
  if (!more.empty()) out.push_back(absl::StrCat("also takes ", Joined(more)));
  if (!fewer.empty()) out.push_back(absl::StrCat("leaves out ", Joined(fewer)));
  if (more.empty() && fewer.empty() && mine != theirs) out.emplace_back("another order of daemons");
  if (StagesOf(plan) > 1 && LayersOf(plan) != LayersOf(ours))
    out.push_back(absl::StrCat("layers ", CutWords(LayersOf(plan))));
  if (plan.links_size() > 0 && CodecWords(plan) != CodecWords(ours))
    out.push_back(absl::StrCat("codecs ", CodecWords(plan)));
  if (out.empty()) out.emplace_back("the same plan");
  return out;
}

void SetBusiest(const Plan& plan, ComparedPlan* row) {
  double busy_s = 0;
  for (const LinkLoad& load : LinkLoads(plan)) {
    if (load.busy_s() <= busy_s) continue;
    busy_s = load.busy_s();
    row->set_busiest_link(absl::StrCat(plan.ranks(load.lower).node_name(), " - ",
                                       plan.ranks(load.upper).node_name()));
    row->set_busiest_bytes(load.bytes());
  }
  row->set_busiest_share(busy_s / plan.predicted_step_s());
}

// What makes the planner take this plan.
std::string Settings(const Plan& plan) {
  return absl::StrCat(
      "--set 'strategy.nodes=[", Joined(NodesOf(plan)), "]' --set 'strategy.layers_per_stage=[",
      absl::StrJoin(LayersOf(plan), ", "), "]'",
      plan.replicas_size() > 1 ? absl::StrCat(" --set strategy.replicas=", plan.replicas_size())
                               : "");
}

std::string Times(double times) { return absl::StrFormat("%.2f", times); }

bool NamesCodecs(const CompressionSpec& c) {
  return c.forward() != "auto" || c.backward() != "auto" || c.gradients() != "auto" ||
         c.tied() != "auto" || !c.boundaries().empty();
}

}  // namespace

CompareWords::CompareWords(const PlannerInput& input, std::vector<std::string> daemons,
                           const PlannedJob& ours)
    : ours_(ours),
      daemons_(std::move(daemons)),
      order_given_(!input.job.strategy().nodes().empty()),
      cut_given_(!input.job.strategy().layers_per_stage().empty()),
      codecs_given_(NamesCodecs(input.job.compression())) {
  out_.set_job(input.job.name());
  out_.set_daemons(static_cast<int>(daemons_.size()));
  if (!input.phases.empty()) out_.add_notes("of the job's phases the first one alone is compared");
}

ComparedPlan* CompareWords::AddRow(const std::string& strategy, const PlannedJob& planned,
                                   int64_t tried) {
  const Plan& plan = planned.plan;
  const double tokens = 1.0 * plan.job().recipe().global_batch() * plan.job().model().context();
  ComparedPlan* row = out_.add_plans();
  row->set_strategy(strategy);
  row->set_tried(tried);
  row->set_step_s(plan.predicted_step_s());
  row->set_tokens_per_s(tokens / plan.predicted_step_s());
  row->set_cost_s(planned.cost_s);
  row->set_times_ours(planned.cost_s / ours_.cost_s);
  SetBusiest(plan, row);
  for (const RankPlan& rank : plan.ranks()) {
    ComparedStage* stage = row->add_stages();
    stage->set_node_name(rank.node_name());
    stage->set_replica(rank.replica());
    stage->set_layers(rank.end_layer() - rank.first_layer());
  }
  for (std::string& name : Without(daemons_, NodesOf(plan))) row->add_left_out(std::move(name));
  return row;
}

void CompareWords::AddPlan(const std::string& strategy, const absl::StatusOr<PlannedJob>& planned,
                           int64_t tried) {
  if (!planned.ok()) {
    ComparedPlan* row = out_.add_plans();
    row->set_strategy(strategy);
    row->set_tried(tried);
    row->set_refusal(std::string(planned.status().message()));
    return;
  }
  ComparedPlan* row = AddRow(strategy, *planned, tried);
  for (std::string& words : Differences(planned->plan, ours_.plan))
    row->add_differs(std::move(words));
  if (strategy != kNoCompression || !codecs_given_) Judge(strategy, *planned);
}

void CompareWords::AddOurs(int64_t tried) { AddRow("planner", ours_, tried); }

void CompareWords::AddGain(const std::string& choice, const std::string& how,
                           const absl::StatusOr<PlannedJob>& without) {
  if (!without.ok()) {
    gains_.emplace_back(
        1e9, absl::StrCat(choice, ": ", how, " there is no plan: ", without.status().message()));
    return;
  }
  if (choice != kCodecs) Judge(absl::StrCat("the plan ", how), *without);  // it has a row
  const double times = without->cost_s / ours_.cost_s;
  const std::string seconds = FormatSeconds(without->plan.predicted_step_s());
  gains_.emplace_back(times, std::abs(times - 1) < kSameCost
                                 ? absl::StrCat(choice, ": nothing; ", how, " a step takes as long")
                                 : absl::StrCat(choice, ": ", how, " a step takes ", seconds, ", ",
                                                Times(times), " times as much"));
}

void CompareWords::Judge(const std::string& strategy, const PlannedJob& planned) {
  const double times = planned.cost_s / ours_.cost_s;
  if (times > 1 - kSameCost) return;
  better_.push_back({strategy, Settings(planned.plan), times});
  std::stable_sort(better_.begin(), better_.end(),
                   [](const Better& a, const Better& b) { return a.times < b.times; });
}

std::string CompareWords::Verdict() const {
  if (better_.empty()) return "No other plan that was looked at is better than the planner's.";
  const Better& best = better_.front();
  const std::string head =
      absl::StrCat(best.strategy, " is better than the planner's by ", FormatShare(1 - best.times));
  if (order_given_ || cut_given_)
    return absl::StrCat(head, ", which keeps to the job's ",
                        order_given_ ? "strategy.nodes" : "strategy.layers_per_stage",
                        ". To take it: ", best.settings);
  if (best.times >= kStagesMustPay)
    return absl::StrCat(head, ": within the ", FormatShare(1 - kStagesMustPay),
                        " that the planner gives up, as one stage more must save as much and its "
                        "search ends somewhere");
  return absl::StrCat(head,
                      ", which the planner's search did not find: that is a fault of it. To "
                      "take it: ",
                      best.settings);
}

PlanComparison CompareWords::Take() {
  out_.set_verdict(Verdict());
  std::stable_sort(gains_.begin(), gains_.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [times, words] : gains_) out_.add_gains(std::move(words));
  return std::move(out_);
}

}  // namespace isthmus::coordinator
