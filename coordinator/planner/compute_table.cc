#include "coordinator/planner/compute_table.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/card.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/shared_cards.h"
#include "coordinator/planner/slices.h"
#include "proto/model/model_cost.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

ComputeTimes TimesOf(const NodeInfo& node) {
  ComputeTimes times;
  times.set_block_forward_s(node.block_forward_s());
  times.set_block_backward_s(node.block_backward_s());
  times.set_block_flops(node.block_flops());
  return times;
}

bool IsFigure(const ComputeTimes& t) {
  return t.block_forward_s() > 0 && t.block_backward_s() > 0 && t.block_flops() > 0;
}

double SecondsPerFlop(const ComputeTimes& t) {
  return (t.block_forward_s() + t.block_backward_s()) / t.block_flops();
}

double Clamp(double factor) { return std::clamp(factor, kLeastComputeFactor, kMostComputeFactor); }

double Middle(std::vector<double> values) {
  if (values.empty()) return 1;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

double PredictedComputeSeconds(const Plan& plan, const RankPlan& stage, const NodeInfo& node) {
  const RecipeSpec& recipe = plan.job().recipe();
  return StageTime(plan.job(), node, stage.first_layer(), stage.end_layer(),
                   SliceOfRank(plan, stage))
             .sum() *
         ShareOf(plan, stage.replica()).count() / recipe.micro_batch();
}

std::optional<ComputeTimes> ComputeTable::FigureOf(const Entry& entry) {
  const auto fastest = std::min_element(entry.measured.begin(), entry.measured.end(),
                                        [](const ComputeTimes& a, const ComputeTimes& b) {
                                          return SecondsPerFlop(a) < SecondsPerFlop(b);
                                        });
  if (fastest != entry.measured.end()) return *fastest;
  return IsFigure(entry.at_start) ? std::optional<ComputeTimes>(entry.at_start) : std::nullopt;
}

// Real steps outweigh a measurement: what the planner counts with stays as it was.
void ComputeTable::Rescale(const std::optional<ComputeTimes>& before, Entry* entry) {
  const std::optional<ComputeTimes> after = FigureOf(*entry);
  if (!before.has_value() || !after.has_value()) return;
  entry->factor = Clamp(entry->factor * SecondsPerFlop(*before) / SecondsPerFlop(*after));
}

void ComputeTable::OnJoin(const NodeInfo& node, bool restarted, absl::Time now) {
  const auto [it, is_new] = entries_.try_emplace(node.id());
  Entry& entry = it->second;
  const std::optional<ComputeTimes> before = FigureOf(entry);
  const bool known = !is_new && entry.device == node.device() && entry.threads == node.threads();
  if (!known) entry = Entry();  // another machine, as far as computing goes
  entry.host = HostOf(node.address());
  entry.device = node.device();
  entry.threads = node.threads();
  busy_until_[entry.host] = now + options_.settle;
  if (!restarted && known) return;
  if (under_way_ == node.id()) under_way_.clear();
  entry.at_start = TimesOf(node);
  entry.joined = now;
  entry.first_due = true;
  if (known) Rescale(before, &entry);
}

void ComputeTable::OnGone(const std::string& node_id) {
  if (under_way_ == node_id) under_way_.clear();
}

void ComputeTable::Restore(const NodeInfo& node) {
  Entry& entry = entries_[node.id()];
  entry.host = HostOf(node.address());
  entry.device = node.device();
  entry.threads = node.threads();
  if (const ComputeTimes times = TimesOf(node); IsFigure(times)) entry.measured = {times};
}

void ComputeTable::Forget(const Membership& members) {
  std::set<std::string> hosts;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (members.Find(it->first) == nullptr) {
      it = entries_.erase(it);
      continue;
    }
    hosts.insert(it->second.host);
    ++it;
  }
  for (auto it = busy_until_.begin(); it != busy_until_.end();)
    it = hosts.count(it->first) == 0 ? busy_until_.erase(it) : std::next(it);
}

bool ComputeTable::Due(const Entry& entry, absl::Time now) const {
  if (entry.first_due) return true;
  const absl::Duration after =
      entry.measured.size() < kKeptMeasurements ? options_.confirm_after : options_.remeasure_after;
  return now - entry.last_measured >= after;
}

std::optional<std::string> ComputeTable::Next(const Membership& members,
                                              const std::set<std::string>& busy, absl::Time now) {
  if (!under_way_.empty() && now >= answer_by_) {  // an older daemon, or one that hangs
    if (const auto it = entries_.find(under_way_); it != entries_.end()) {
      it->second.first_due = false;
      it->second.last_measured = now;
    }
    under_way_.clear();
  }
  for (const std::string& id : busy) {
    if (const Member* m = members.Find(id); m != nullptr)
      busy_until_[HostOf(m->node.address())] = now + options_.settle;
  }
  if (!under_way_.empty()) return std::nullopt;
  std::string best;
  for (const bool first : {true, false}) {  // new daemons come before the others
    for (const auto& [id, entry] : entries_) {
      const Member* member = members.Find(id);
      if (member == nullptr || !member->alive() || entry.first_due != first || !Due(entry, now))
        continue;
      const auto host = busy_until_.find(entry.host);
      if (host != busy_until_.end() && now < host->second) continue;
      if (best.empty() || entry.last_measured < entries_[best].last_measured) best = id;
    }
    if (!best.empty()) break;
  }
  if (best.empty()) return std::nullopt;
  under_way_ = best;
  answer_by_ = now + options_.answer_within;
  return best;
}

bool ComputeTable::HoldsLinks(const Membership& members, const std::set<std::string>& busy,
                              absl::Time now) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& at) {
    const Member* member = members.Find(at.first);
    return member != nullptr && member->alive() && busy.count(at.first) == 0 &&
           at.second.first_due && now - at.second.joined < options_.hold_links;
  });
}

absl::Status ComputeTable::OnResult(const std::string& node_id, const ComputeTimes& times,
                                    absl::Time now) {
  const bool asked = under_way_ == node_id;
  if (asked) under_way_.clear();
  const auto it = entries_.find(node_id);
  if (it == entries_.end() || !asked) return absl::OkStatus();  // a late answer
  Entry& entry = it->second;
  const bool none = times.block_forward_s() == 0 && times.block_backward_s() == 0;
  if (none) {
    busy_until_[entry.host] = now + options_.settle;
    return absl::OkStatus();
  }
  entry.first_due = false;
  entry.last_measured = now;
  for (double v : {times.block_forward_s(), times.block_backward_s(), times.block_flops()}) {
    if (!std::isfinite(v) || !(v > 0))
      return absl::InvalidArgumentError(
          "the times of the reference block are not positive numbers; the daemon's earlier figure "
          "is kept");
  }
  const std::optional<ComputeTimes> before = FigureOf(entry);
  entry.measured.push_back(times);
  if (entry.measured.size() > kKeptMeasurements) entry.measured.pop_front();
  Rescale(before, &entry);
  return absl::OkStatus();
}

void ComputeTable::OnStep(const NodeInfo& node, const Plan& plan, const StepRecord& record) {
  const auto it = entries_.find(node.id());
  if (it == entries_.end() || !record.committed() || record.step() <= plan.start_step() ||
      record.generation() != plan.generation())
    return;
  const auto stage = std::find_if(plan.ranks().begin(), plan.ranks().end(),
                                  [&](const RankPlan& s) { return s.node_id() == node.id(); });
  const std::optional<ComputeTimes> figure = FigureOf(it->second);
  if (stage == plan.ranks().end() || !figure.has_value()) return;
  NodeInfo measured = node;
  measured.set_block_forward_s(figure->block_forward_s());
  measured.set_block_backward_s(figure->block_backward_s());
  measured.set_block_flops(figure->block_flops());
  // Ranks on one card have their parts of its speed, as planned.
  const int parts = RanksOnCard(plan, CardOf(node.device()), [this](const std::string& id) {
    const auto other = entries_.find(id);
    return other == entries_.end() ? std::string() : CardOf(other->second.device);
  });
  const double predicted_s = parts * PredictedComputeSeconds(plan, *stage, measured);
  const double optimizer_s =
      kOptimizerSecondsPerParameter * StageCost(plan.job().model(), stage->first_layer(),
                                                stage->end_layer(), 1, SliceOfRank(plan, *stage))
                                          .parameters;
  if (!(predicted_s > 0) || !(record.compute_s() > 0)) return;
  const double now = Clamp(std::max(0.0, record.compute_s() - optimizer_s) / predicted_s);
  Entry& entry = it->second;
  ++entry.steps;
  // The mean of the first few, then one that forgets.
  entry.factor += (now - entry.factor) * std::max(kStepWeight, 1.0 / entry.steps);
}

std::optional<ComputeTimes> ComputeTable::Figure(const std::string& node_id) const {
  const auto it = entries_.find(node_id);
  return it == entries_.end() ? std::nullopt : FigureOf(it->second);
}

double ComputeTable::Factor(const NodeInfo& node) const {
  const auto own = entries_.find(node.id());
  if (own != entries_.end() && own->second.steps >= kStepsForComputeFactor)
    return own->second.factor;
  std::vector<double> host, all;
  for (const auto& [id, entry] : entries_) {
    if (entry.steps < kStepsForComputeFactor) continue;
    all.push_back(entry.factor);
    if (entry.host == HostOf(node.address())) host.push_back(entry.factor);
  }
  return Middle(host.empty() ? std::move(all) : std::move(host));
}

NodeInfo ComputeTable::Corrected(const NodeInfo& node) const {
  NodeInfo corrected = node;
  const double factor = Factor(node);
  corrected.set_block_forward_s(node.block_forward_s() * factor);
  corrected.set_block_backward_s(node.block_backward_s() * factor);
  return corrected;
}

}  // namespace isthmus::coordinator
