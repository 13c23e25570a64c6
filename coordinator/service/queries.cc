#include "coordinator/service/queries.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/core/job_names.h"
#include "coordinator/planner/cost_model.h"
#include "nlohmann/json.hpp"

namespace isthmus::coordinator {
namespace {

constexpr int kListedLinks = 20000;  // in one reply: what a message holds
constexpr int kListedWarnings = 5;   // of a daemon, about who does not reach it

}  // namespace

absl::StatusOr<JobStatus> Queries::Status(const std::string& name, bool with_plan) {
  MutexLock lock(&cores_->mutex);
  ASSIGN_OR_RETURN(const Job* job, JobCalled(cores_->jobs, name));
  if (job == nullptr) return NoJob(name);
  JobStatus status = cores_->jobs.Status(*job, SteadyNow());
  if (with_plan && job->status.generation() != 0) *status.mutable_plan() = job->plan;
  return status;
}

ListJobsReply Queries::List() {
  ListJobsReply reply;
  MutexLock lock(&cores_->mutex);
  for (const Job* job : cores_->jobs.All()) {
    *reply.add_jobs() = cores_->jobs.Status(*job, SteadyNow());
    reply.mutable_jobs(reply.jobs_size() - 1)->clear_boundaries();  // a list is short: one message
  }
  return reply;
}

NodeStatus Queries::Describe(const Member& member, absl::Time now) {
  NodeStatus out;
  *out.mutable_node() = member.node;
  out.mutable_node()->clear_data_files();
  out.set_alive(member.alive());
  out.set_left(member.leaving && !member.connected());
  out.set_drained(member.drained);
  // Since when it is away is not known where the coordinator started after that.
  const bool heard = member.connected() || member.has_heartbeat || !member.instance.empty();
  out.set_heartbeat_age_s(heard ? absl::ToDoubleSeconds(member.silent(now)) : -1);
  out.set_stage(-1);
  if (member.path.ByteSizeLong() > 0) *out.mutable_path() = member.path;
  const Job* job = cores_->jobs.JobOn(member.node.id());
  if (job != nullptr) {
    out.set_job_id(job->id);
    for (const RankPlan& s : job->plan.ranks()) {
      if (s.node_id() != member.node.id()) continue;
      out.set_stage(s.stage());
      out.set_replica(s.replica());
    }
    const absl::Duration still =
        cores_->members.NoProgressFor(member.node.id(), job->status.generation(), now);
    if (still > absl::Milliseconds(job->plan.deadlines().step_ms()))
      out.add_warnings(absl::StrCat("no progress for ", DurationWords(still)));
  }
  if (member.leaving && !member.connected()) out.add_warnings(AwayWords(member, now));
  if (!member.connected() && daemons_->IsRevoked(member.node.id()))
    out.add_warnings("its certificate is revoked");
  if (!HasCompute(member.node)) out.add_warnings("has not measured its compute");
  if (member.node.data_listed() && member.node.data_files().empty())
    out.add_warnings("has no data: its --data-dir is empty");
  if (const std::string fault = LocalOnly(member.node.address()); !fault.empty()) {
    const std::string from = daemons_->Peer(member.stream);
    bool elsewhere = !from.empty() && !absl::StrContains(from, ":127.") &&
                     !absl::StrContains(from, "[::1]") && !absl::StrContains(from, "%5B::1%5D");
    for (const auto& [id, other] : cores_->members.members())
      elsewhere = elsewhere || (other.alive() && LocalOnly(other.node.address()).empty());
    if (elsewhere) out.add_warnings(fault);
  }
  return out;
}

ListNodesReply Queries::Nodes() {
  ListNodesReply reply;
  MutexLock lock(&cores_->mutex);
  std::vector<std::string> ids;
  for (const auto& [id, member] : cores_->members.members()) {
    *reply.add_nodes() = Describe(member, SteadyNow());
    ids.push_back(id);
  }
  std::map<std::string, int> unreachable;
  std::map<std::string, NodeStatus*> by_id;
  for (NodeStatus& node : *reply.mutable_nodes()) by_id[node.node().id()] = &node;
  for (LinkMeasurement& link : cores_->links.Among(ids)) {
    NodeStatus* to = by_id[link.to_id()];
    if (to->alive() && !link.error().empty() && link.rate_bits_per_s() == 0 &&
        ++unreachable[link.to_id()] <= kListedWarnings) {
      to->add_warnings(absl::StrCat("not reachable from ", by_id[link.from_id()]->node().name(),
                                    ": ", link.error()));
    }
    if (reply.links_size() < kListedLinks) *reply.add_links() = std::move(link);
  }
  return reply;
}

std::string Queries::ServiceDiscovery(const std::string& own_address) {
  nlohmann::json targets = nlohmann::json::array();
  auto add = [&](const std::string& address, const std::string& node, const char* role) {
    targets.push_back({{"targets", {address}}, {"labels", {{"node", node}, {"role", role}}}});
  };
  add(own_address, "coordinator", "coordinator");
  MutexLock lock(&cores_->mutex);
  for (const auto& [id, label] : cores_->members.Labels()) {
    const Member& m = *cores_->members.Find(id);
    if (m.alive() && !m.node.metrics_address().empty())
      add(m.node.metrics_address(), label, "daemon");
  }
  return targets.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace isthmus::coordinator
