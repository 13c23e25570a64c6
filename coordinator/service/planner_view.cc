#include "coordinator/service/planner_view.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_memory.h"
#include "coordinator/planner/job_data.h"
#include "proto/data/data_contents.h"
#include "proto/job/job_defaults.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

bool MayUse(const JobSpec& job, const Member& member) {
  const auto& named = job.strategy().nodes();
  return member.alive() && !member.drained &&
         (named.empty() || std::any_of(named.begin(), named.end(), [&](const std::string& name) {
            return name == member.node.name() || name == member.node.id();
          }));
}

// Why no plan of `job_id` may use it now; empty: it may.
std::string WhyAbsent(const Cores& cores, const Member& m, const std::string& job_id,
                      bool with_busy, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores.mutex) {
  const Job* job = HeldBy(cores, m.node.id(), job_id);
  if (!m.alive()) {
    return m.connected() ? absl::StrCat(m.node.name(), " registered and is not heard yet")
                         : absl::StrCat(m.node.name(), " ", AwayWords(m, now));
  }
  if (m.leaving) return absl::StrCat(m.node.name(), " is ending");
  if (m.drained)
    return absl::StrCat(m.node.name(), " is drained (isthmus drain ", m.node.name(), " --undo)");
  if (job != nullptr) return with_busy ? "" : absl::StrCat(m.node.name(), " runs job ", job->id);
  const Job* own = cores.jobs.JobOn(m.node.id());  // it is planned anew while it runs
  if (own != nullptr || m.heartbeat.generation() == 0) return "";
  return absl::StrCat(m.node.name(), " still ends its last session (generation ",
                      m.heartbeat.generation(), ")");
}

bool DaemonsEnd(const Cores& cores) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores.mutex) {
  for (const auto& [id, member] : cores.members.members()) {
    if (member.connected() && cores.jobs.JobOn(id) == nullptr &&
        (!member.alive() || member.heartbeat.generation() != 0))
      return true;
  }
  return false;
}

// It is planned on one daemon, whatever the links are.
bool NeedsNoLink(const JobSpec& job) {
  const StrategySpec& strategy = job.strategy();
  const bool one_stage = WantedStages(strategy) == 1 || job.model().layers() == 1;
  return strategy.nodes_size() == 1 || (one_stage && strategy.replicas() == 1);
}

// Of two daemons that it may use, a way is neither measured nor known not to be: the one that can't
// dial is known when the other one has measured both ways.
bool LinksMissing(Cores* cores, const JobSpec& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores->mutex) {
  if (NeedsNoLink(job)) return false;
  std::set<std::string> working;  // hosts: nothing is measured there meanwhile
  for (const std::string& id : cores->jobs.Working()) {
    if (const Member* m = cores->members.Find(id)) working.insert(HostOf(m->node.address()));
  }
  std::vector<std::string> ids;
  for (const auto& [id, m] : cores->members.members()) {
    if (MayUse(job, m) && working.count(HostOf(m.node.address())) == 0) ids.push_back(id);
  }
  return static_cast<int>(ids.size()) >= std::max(2, LeastDaemons(job.strategy())) &&
         cores->links.Unmeasured(ids) > 0;
}

bool DataComes(const Cores& cores, const JobSpec& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores.mutex) {
  std::vector<const NodeInfo*> nodes;
  for (const auto& [id, m] : cores.members.members()) {
    if (MayUse(job, m)) nodes.push_back(&m.node);
  }
  return DataMayCome(job, nodes, ISTHMUS_VERSION);
}

int64_t PlannedBytes(const Plan& plan, const NodeInfo& node) {
  int64_t bytes = 0;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (plan.ranks(r).node_id() != node.id()) continue;
    bytes += plan.ranks(r).memory_bytes() +
             PlannedCardBuffers(plan, r, node.device_memory_bytes());  // 0 where there is no card
  }
  return bytes;
}

template <typename Condition>
void WaitWhile(Cores* cores, absl::Duration patience, const Cancelled& cancelled,
               Condition condition) {
  const auto until = SteadyAfter(patience);
  MutexLock lock(&cores->mutex);
  while (!cores->stopping && !cancelled() && std::chrono::steady_clock::now() < until &&
         condition())
    cores->changed.WaitUntil(&cores->mutex, SteadyAfter(kLookAgain));
}

}  // namespace

const Job* HeldBy(const Cores& cores, const std::string& node_id, const std::string& own) {
  for (const Job* job : cores.jobs.All()) {
    if (job->id == own || (!job->active() && !job->moving)) continue;
    if (std::any_of(job->plan.ranks().begin(), job->plan.ranks().end(),
                    [&](const RankPlan& rank) { return rank.node_id() == node_id; }))
      return job;
  }
  return nullptr;
}

void AddTopology(Cores* cores, bool with_busy, PlannerInput* in) {
  // A phase begins with codecs, and maybe daemons, of its own.
  if (const Job* job = cores->jobs.Find(in->job_id);
      job != nullptr && in->start_step > in->phase_start && job->plan.phase() == in->phase)
    in->previous = job->plan;
  const absl::Time now = SteadyNow();
  std::vector<std::string> ids;
  for (const auto& [id, m] : cores->members.members()) {
    if (std::string why = WhyAbsent(*cores, m, in->job_id, with_busy, now); !why.empty()) {
      in->absent.push_back(
          {id, m.node.name(), std::move(why), !m.leaving && !m.drained, std::nullopt});
      if (m.alive()) in->absent.back().node = m.node;
      if (const Job* job = HeldBy(*cores, id, in->job_id))
        in->absent.back().planned_bytes = PlannedBytes(job->plan, m.node);
      continue;
    }
    *in->topology.add_nodes() = cores->compute.Corrected(m.node);
    in->compute_factors[id] = cores->compute.Factor(m.node);
    in->paths[id] = m.path;
    ids.push_back(id);
  }
  for (LinkMeasurement& link : cores->links.Among(ids)) *in->topology.add_links() = std::move(link);
}

DataNow DataOf(const Cores& cores, const JobSpec& job) {
  for (const auto& [id, member] : cores.members.members()) {
    if (!member.alive()) continue;
    const absl::StatusOr<DataSize> size = CountSamples(job, member.node);
    if (!size.ok() || !size->known) continue;
    return {size->train_samples, DataContents(job.data(), member.node.data_files())};
  }
  return {};
}

void WaitForTopology(Cores* cores, const PlannerPatience& patience, const JobSpec& job,
                     const Cancelled& cancelled) {
  WaitWhile(cores, patience.daemons, cancelled,
            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return DaemonsEnd(*cores); });
  WaitWhile(cores, patience.links, cancelled,
            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return LinksMissing(cores, job); });
  WaitWhile(cores, patience.data, cancelled,
            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return DataComes(*cores, job); });
}

}  // namespace isthmus::coordinator
