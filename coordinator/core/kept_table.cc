#include "coordinator/core/kept_table.h"

#include <algorithm>

#include "proto/plan/groups.h"

namespace isthmus::coordinator {

void KeptTable::Told(const std::string& node_id, const KeptParts& all) {
  for (auto job = parts_.begin(); job != parts_.end();) {
    job->second.erase(node_id);
    job = job->second.empty() ? parts_.erase(job) : std::next(job);
  }
  for (int i = 0; i < std::min(kMaxParts, all.parts_size()); ++i)
    parts_[all.parts(i).job_id()][node_id].push_back(all.parts(i));
}

void KeptTable::Forget(const Membership& members) {
  for (auto job = parts_.begin(); job != parts_.end();) {
    for (auto node = job->second.begin(); node != job->second.end();)
      node = members.Find(node->first) == nullptr ? job->second.erase(node) : std::next(node);
    job = job->second.empty() ? parts_.erase(job) : std::next(job);
  }
}

std::set<int64_t> KeptTable::Steps(const Plan& plan, int rank, int64_t step) const {
  std::set<int64_t> steps;
  const auto job = parts_.find(plan.job_id());
  if (job == parts_.end() || !PutsParts(plan, rank)) return steps;
  const auto node = job->second.find(plan.ranks(rank).node_id());
  if (node == job->second.end()) return steps;
  for (const KeptPart& part : node->second) {
    if (part.step() > step && part.generation() == plan.generation() &&
        part.stage() == plan.ranks(rank).stage() && part.stages() == StagesOf(plan))
      steps.insert(part.step());
  }
  return steps;
}

std::vector<int64_t> KeptTable::Whole(const Plan& plan, int64_t step) const {
  std::map<int64_t, int> ranks;  // that keep theirs of a step
  int all = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    all += PutsParts(plan, r);
    for (int64_t kept : Steps(plan, r, step)) ++ranks[kept];
  }
  std::vector<int64_t> whole;
  for (const auto& [kept, count] : ranks) {
    if (count == all) whole.push_back(kept);
  }
  return whole;
}

bool KeptTable::KeepsLater(const Plan& plan, int rank, int64_t step) const {
  return !Steps(plan, rank, step).empty();
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
