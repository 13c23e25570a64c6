#include "coordinator/core/kept_table.h"

#include <algorithm>

#include "proto/model/model_cost.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

constexpr double kUnmeasuredBitsPerSecond = 1e7;

// Of the rank, as the session of `plan` wrote it.
bool IsOf(const Plan& plan, int rank, const KeptPart& part) {
  const RankPlan& of = plan.ranks(rank);
  return part.generation() == plan.generation() && part.stage() == of.stage() &&
         part.stages() == StagesOf(plan) &&
         part.replica() == (MakesLocalSteps(plan) ? of.replica() : 0);
}

}  // namespace

void KeptTable::Told(const std::string& node_id, const KeptParts& all) {
  away_.erase(node_id);
  for (auto job = parts_.begin(); job != parts_.end();) {
    job->second.erase(node_id);
    job = job->second.empty() ? parts_.erase(job) : std::next(job);
  }
  for (int i = 0; i < std::min(kMaxParts, all.parts_size()); ++i)
    parts_[all.parts(i).job_id()][node_id].push_back(all.parts(i));
}

void KeptTable::Forget(const Membership& members) {
  away_.clear();
  for (const auto& [id, member] : members.members()) {
    if (!member.alive()) away_.insert(id);
    if (member.path.up_bits_per_s() > 0) up_[id] = member.path.up_bits_per_s();
  }
  for (auto job = parts_.begin(); job != parts_.end();) {
    for (auto node = job->second.begin(); node != job->second.end();)
      node = members.Find(node->first) == nullptr ? job->second.erase(node) : std::next(node);
    job = job->second.empty() ? parts_.erase(job) : std::next(job);
  }
}

const KeptTable::OfJob& KeptTable::Of(const Plan& plan) const {
  static const OfJob& nothing = *new OfJob();
  const auto job = parts_.find(plan.job_id());
  return job == parts_.end() ? nothing : job->second;
}

std::vector<int64_t> KeptTable::Whole(const Plan& plan, int64_t step, bool reachable) const {
  std::map<int64_t, int> ranks;  // whose part is kept of a step
  int all = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (!PutsParts(plan, r)) continue;
    ++all;
    std::set<int64_t> steps;
    for (const auto& [node, parts] : Of(plan)) {
      if (reachable && away_.count(node) > 0) continue;
      for (const KeptPart& part : parts) {
        if (part.step() > step && IsOf(plan, r, part)) steps.insert(part.step());
      }
    }
    for (int64_t kept : steps) ++ranks[kept];
  }
  std::vector<int64_t> whole;
  for (const auto& [kept, count] : ranks) {
    if (count == all) whole.push_back(kept);
  }
  return whole;
}

std::vector<std::string> KeptTable::Holders(const Plan& plan, int rank, int64_t step) const {
  std::vector<std::string> holders;
  for (const auto& [node, parts] : Of(plan)) {
    const bool holds = std::any_of(parts.begin(), parts.end(), [&](const KeptPart& part) {
      return part.step() == step && IsOf(plan, rank, part);
    });
    if (holds) holders.push_back(node);
  }
  const auto last = [&](const std::string& node) {
    return std::make_pair(away_.count(node) > 0, node != plan.ranks(rank).node_id());
  };
  std::stable_sort(holders.begin(), holders.end(),
                   [&](const std::string& a, const std::string& b) { return last(a) < last(b); });
  return holders;
}

double KeptTable::SecondsToBring(const Plan& plan, int64_t step) const {
  if (plan.job().model().layers() == 0) return 0;
  std::map<std::string, double> seconds;  // by daemon
  double longest = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (!PutsParts(plan, r)) continue;
    const RankPlan& rank = plan.ranks(r);
    const std::vector<std::string> holders = Holders(plan, r, step);
    const std::string& from = holders.empty() ? rank.node_id() : holders.front();
    const auto rate = up_.find(from);
    // Weights and the optimiser's two moments.
    const double bytes = 3.0 * static_cast<double>(StageCost(plan.job().model(), rank.first_layer(),
                                                             rank.end_layer(), 1)
                                                       .parameter_bytes());
    seconds[from] += bytes * 8 / (rate == up_.end() ? kUnmeasuredBitsPerSecond : rate->second);
    longest = std::max(longest, seconds[from]);
  }
  return longest;
}

bool KeptTable::KeepsLater(const Plan& plan, int rank, int64_t step) const {
  const auto own = Of(plan).find(plan.ranks(rank).node_id());
  return own != Of(plan).end() &&
         std::any_of(own->second.begin(), own->second.end(), [&](const KeptPart& part) {
           return part.step() > step && IsOf(plan, rank, part);
         });
}

std::vector<std::pair<std::string, std::string>> KeptTable::TakeUseless(
    const std::set<std::string>& removed) {
  std::vector<std::pair<std::string, std::string>> useless;
  for (auto job = parts_.begin(); job != parts_.end();) {
    if (removed.count(job->first) == 0) {
      ++job;
      continue;
    }
    for (const auto& [node, parts] : job->second) useless.emplace_back(node, job->first);
    job = parts_.erase(job);
  }
  return useless;
}

}  // namespace isthmus::coordinator
