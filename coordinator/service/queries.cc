// The half of Coordinator that answers: status, records, nodes, metrics.
#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/service/coordinator.h"
#include "nlohmann/json.hpp"
#include "proto/job/job_state.h"

#ifndef ISTHMUS_VERSION
#define ISTHMUS_VERSION "unknown"
#endif

namespace isthmus::coordinator {
namespace {

constexpr int kListedLinks = 20000;  // in one reply: what a message holds
constexpr int kListedWarnings = 5;   // of a daemon, about who does not reach it
constexpr int kGaugedJobs = 20;      // with metrics of their own: the newest ones

}  // namespace

absl::Status Coordinator::NoJob(const std::string& job) {
  return absl::NotFoundError(
      absl::StrCat("there is no job '", job.substr(0, 80), "' (isthmus list shows what there is)"));
}

absl::StatusOr<JobStatus> Coordinator::Status(const std::string& job_name, bool with_plan) {
  MutexLock lock(&mutex_);
  const Job* job = jobs_.Find(job_name);
  if (job == nullptr) return NoJob(job_name);
  JobStatus status = jobs_.Status(*job, Now());
  if (with_plan && job->status.generation() != 0) *status.mutable_plan() = job->plan;
  return status;
}

absl::StatusOr<JobStatus> Coordinator::StopJob(const std::string& job_name, bool at_once) {
  MutexLock lock(&mutex_);
  const Job* job = jobs_.Find(job_name);
  if (job == nullptr) return NoJob(job_name);
  ASSIGN_OR_RETURN(Commands commands, jobs_.Stop(job->id, at_once, Now()));
  Dispatch(std::move(commands));
  changed_.SignalAll();
  return jobs_.Status(*job, Now());
}

ListJobsReply Coordinator::List() {
  ListJobsReply reply;
  MutexLock lock(&mutex_);
  for (const Job* job : jobs_.All()) {
    *reply.add_jobs() = jobs_.Status(*job, Now());
    reply.mutable_jobs(reply.jobs_size() - 1)->clear_boundaries();  // a list is short: one message
  }
  return reply;
}

NodeStatus Coordinator::DescribeNode(const Member& member, absl::Time now) {
  NodeStatus out;
  *out.mutable_node() = member.node;
  out.mutable_node()->clear_data_files();
  out.set_alive(member.alive());
  out.set_heartbeat_age_s(absl::ToDoubleSeconds(member.silent(now)));
  out.set_stage(-1);
  if (member.path.ByteSizeLong() > 0) *out.mutable_path() = member.path;
  const Job* job = jobs_.JobOn(member.node.id());
  if (job != nullptr) {
    out.set_job_id(job->id);
    for (const RankPlan& s : job->plan.ranks()) {
      if (s.node_id() == member.node.id()) out.set_stage(s.stage());
    }
    const absl::Duration still =
        members_.NoProgressFor(member.node.id(), job->status.generation(), now);
    if (still > absl::Milliseconds(job->plan.deadlines().step_ms()))
      out.add_warnings(absl::StrCat("no progress for ", DurationWords(still)));
  }
  if (!HasCompute(member.node)) out.add_warnings("has not measured its compute");
  if (member.node.data_listed() && member.node.data_files().empty())
    out.add_warnings("has no data: its --data-dir is empty");
  if (const std::string fault = LocalOnly(member.node.address()); !fault.empty()) {
    const auto session = sessions_.find(member.stream);
    const std::string from = session == sessions_.end() ? "" : session->second->peer;
    bool elsewhere = !from.empty() && !absl::StrContains(from, ":127.") &&
                     !absl::StrContains(from, "[::1]") && !absl::StrContains(from, "%5B::1%5D");
    for (const auto& [id, other] : members_.members())
      elsewhere = elsewhere || (other.alive() && LocalOnly(other.node.address()).empty());
    if (elsewhere) out.add_warnings(fault);
  }
  return out;
}

ListNodesReply Coordinator::Nodes() {
  ListNodesReply reply;
  MutexLock lock(&mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_.members()) {
    *reply.add_nodes() = DescribeNode(member, Now());
    ids.push_back(id);
  }
  std::map<std::string, int> unreachable;
  std::map<std::string, NodeStatus*> by_id;
  for (NodeStatus& node : *reply.mutable_nodes()) by_id[node.node().id()] = &node;
  for (LinkMeasurement& link : links_.Among(ids)) {
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

// ---- pages ----

void Coordinator::UpdateMetrics() {
  MutexLock lock(&mutex_);
  const absl::Time now = Now();
  UpdateNodeMetrics(now);
  UpdateJobMetrics(now);
  GaugeSet("isthmus_build_info", "Version of this program.",
           {{"version", ISTHMUS_VERSION}, {"device", "none"}}, 1);
}

void Coordinator::UpdateNodeMetrics(absl::Time now) {
  int alive = 0;
  for (const auto& [id, m] : members_.members()) alive += m.alive();
  std::set<std::string> shown;
  for (const auto& [id, label] : members_.Labels()) {
    const Member& m = *members_.Find(id);
    shown.insert(label);
    GaugeSet("isthmus_node_up", "1: the daemon is connected and its lease holds; 0: it is lost.",
             {{"node", label}}, m.alive());
    GaugeSet("isthmus_node_heartbeat_age_seconds", "Time since the last heartbeat of a daemon.",
             {{"node", label}}, absl::ToDoubleSeconds(now - m.last_heartbeat));
  }
  for (const std::string& gone : gauge_nodes_) {
    if (shown.count(gone) > 0) continue;
    for (const char* name : {"isthmus_node_up", "isthmus_node_heartbeat_age_seconds"})
      GaugeRemove(name, {{"node", gone}});
  }
  gauge_nodes_.swap(shown);
  GaugeSet("isthmus_lease_seconds", "A daemon silent for so long is lost.", {},
           absl::ToDoubleSeconds(options_.membership.lease));
  GaugeSet("isthmus_nodes", "Daemons by state.", {{"state", "alive"}}, alive);
  GaugeSet("isthmus_nodes", "Daemons by state.", {{"state", "lost"}},
           static_cast<double>(members_.members().size()) - alive);
}

void Coordinator::UpdateJobMetrics(absl::Time now) {
  std::map<JobState, int> states;
  // Gauges that the last call set and this one does not are of jobs that ended or were dropped.
  std::set<std::pair<std::string, MetricLabels>> set;
  const auto gauge = [&](const char* name, const char* help, const MetricLabels& labels,
                         double value) {
    GaugeSet(name, help, labels, value);
    set.insert({name, labels});
  };
  int newest = 0;
  for (const Job* job : jobs_.All()) {
    ++states[job->status.state()];
    if (!job->active() && newest >= kGaugedJobs) continue;
    ++newest;
    const JobStatus s = jobs_.Status(*job, now);
    const MetricLabels label = {{"job", job->id}};
    gauge("isthmus_job_step", "Committed steps of a job.", label, s.step());
    gauge("isthmus_job_generation", "Number of the job's current plan.", label,
          static_cast<double>(s.generation()));
    gauge("isthmus_job_checkpoint_step", "Step of the newest whole checkpoint; -1: none.", label,
          s.checkpoint_step());
    gauge("isthmus_job_failed_checkpoints",
          "Checkpoints that could not be stored since the newest whole one.", label,
          job->active() ? static_cast<double>(s.failed_checkpoints()) : 0);
    if (jobs_.WantsAttention(*job, now)) {
      gauge("isthmus_job_held",
            "1 for a paused or failed job that nobody has resumed, replaced or removed.",
            {{"job", job->id}, {"state", StateName(s.state())}}, 1);
    }
    if (!job->active() || !HasLoss(s)) continue;
    gauge("isthmus_job_loss", "Training loss of the last step, in nats a token.", label, s.loss());
    gauge("isthmus_job_tokens_per_second", "Training rate over the last steps.", label,
          s.tokens_per_s());
  }
  for (int state = JobState_MIN; state <= JobState_MAX; ++state) {
    GaugeSet("isthmus_jobs", "Jobs by state.", {{"state", StateName(static_cast<JobState>(state))}},
             states[static_cast<JobState>(state)]);
  }
  for (const auto& [name, labels] : job_gauges_) {
    if (set.count({name, labels}) == 0) GaugeRemove(name, labels);
  }
  job_gauges_.swap(set);
}

std::string Coordinator::ServiceDiscovery(const std::string& own_address) {
  nlohmann::json targets = nlohmann::json::array();
  auto add = [&](const std::string& address, const std::string& node, const char* role) {
    targets.push_back({{"targets", {address}}, {"labels", {{"node", node}, {"role", role}}}});
  };
  add(own_address, "coordinator", "coordinator");
  MutexLock lock(&mutex_);
  for (const auto& [id, label] : members_.Labels()) {
    const Member& m = *members_.Find(id);
    if (m.alive() && !m.node.metrics_address().empty())
      add(m.node.metrics_address(), label, "daemon");
  }
  return targets.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace isthmus::coordinator
