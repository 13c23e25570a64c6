// The half of JobTable that knows what is stored of jobs: checkpoints, and which could not be.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/jobs.h"
#include "proto/job/job_state.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/local_checkpoints.h"

namespace isthmus::coordinator {
namespace {

constexpr char kNotStored[] = "checkpoints are not stored: ";
constexpr int64_t kFewSteps = 3;
constexpr int kOverduePeriods = 3;  // one is under way, the next one due

constexpr char kFallBack[] = ". A job that ends now ";  // the sentence of FallBack

// "weights.safetensors of stage 0 (12.0 MiB) and weights.safetensors of stage 1 (9.0 MiB): why";
// parts with one cause share its words.
std::string WhyNot(const std::map<std::pair<int, int>, PartTrouble>& parts) {
  std::vector<std::string> all;
  std::set<std::string> said;
  for (const auto& [of, trouble] : parts) {
    if (!said.insert(trouble.why).second) continue;
    std::vector<std::string> names;
    for (const auto& [other, same] : parts) {
      if (same.why == trouble.why && !same.part.empty()) names.push_back(same.part);
    }
    all.push_back(absl::StrCat(NamesOf(names), names.empty() ? "" : ": ", trouble.why));
  }
  return absl::StrJoin(all, "; ");
}

// Nothing is left to do but to store the last one.
bool AtItsEnd(const Job& job) {
  const JobStatus& s = job.status;
  return s.state() == JOB_STOPPING || (s.state() == JOB_RUNNING && s.step() >= EndOf(job));
}

}  // namespace

void JobTable::OnCheckpoint(const std::string& job_id, int64_t step, absl::Time now) {
  Job* job = Mutable(job_id);
  if (job == nullptr || step < job->status.checkpoint_step()) return;
  if (job->status.state() == JOB_PENDING && job->step_asked) return;  // it goes on from another
  // One that was brought after an interruption is no progress where it is of the first steps.
  const bool got_on = job->active() || step >= job->plan.start_step() + kFewSteps;
  if (step > job->status.checkpoint_step() && got_on) job->interruptions = 0;
  job->status.set_checkpoint_step(step);
  job->status.set_failed_checkpoints(0);
  job->checkpoint_trouble.clear();
  if (job->recovering && job->kept_step >= 0 && step >= job->kept_step) job->untold.clear();
  if (step >= job->kept_step) {
    job->kept_step = -1;
    job->kept_refused.clear();
  }
  job->progressed = now;
  if (step >= EndOf(*job)) Revive(job, now);         // all was done while nobody was heard
  SetStep(job, std::max(job->status.step(), step));  // its records may be lost
  if (job->active() && job->status.cause().kind() == FailureCause::CHECKPOINT_HELD)
    SetState(job, job->status.state(), "", now);
  const bool resumed = job->status.state() == JOB_PENDING && job->status.generation() != 0;
  if (resumed && step >= job->status.steps()) EndInOrder(job, "", now);  // nothing is left to do
  if (job->ended()) CameLate(job, now);
  if (job->recovering) Reword(job);
  Touch(job);
  MaybeFinish(job, now);
}

// ---- what daemons keep ----

void JobTable::OnKept(const std::string& node_id, const KeptParts& all) {
  kept_.Told(node_id, all);
}

std::vector<std::string> KeptBy(const Job& job) {
  std::vector<std::string> names;
  for (int r = 0; r < job.plan.ranks_size(); ++r) {
    if (PutsParts(job.plan, r)) names.push_back(job.plan.ranks(r).node_name());
  }
  return names;
}

bool StaysKept(const Job& job) {
  return job.status.state() == JOB_STOPPED && job.stop_reason.empty() && !job.kept_wanted &&
         LocalEvery(job.plan) > 0 && !CheckpointAfter(job.plan, job.kept_step - 1);
}

std::string KeptWords(const Job& job) {
  const std::string lie = absl::StrCat("the parts of checkpoint ", job.kept_step,
                                       " lie on the disks of ", absl::StrJoin(job.kept_on, ", "));
  if (StaysKept(job)) return absl::StrCat(lie, ": a resume fetches them and goes on from it");
  if (!job.kept_waits.empty())
    return absl::StrCat(lie, "; they come here by themselves, but ", job.kept_waits);
  if (!job.kept_refused.empty())
    return absl::StrCat(lie, ", and this coordinator can't store them: ", job.kept_refused,
                        ". Make room; they are asked for again then");
  return absl::StrCat(lie, " and are on their way here: a resume goes on from it once it is whole");
}

// The daemon that is asked for the part of `rank` of job.kept_step; null, and `why` in words: it
// can't be had now.
const Member* JobTable::Holder(const Job& job, int rank, const Membership& members,
                               std::string* why) const {
  for (const std::string& node : kept_.Holders(job.plan, rank, job.kept_step)) {
    const Member* member = members.Find(node);
    if (member == nullptr || !member->alive()) continue;
    if (member->heartbeat.generation() == 0 && JobOn(node) == nullptr) return member;
    *why = absl::StrCat("daemon ", member->node.name(), " works for a job");
  }
  if (why->empty())
    *why = absl::StrCat("daemon ", job.plan.ranks(rank).node_name(), " is not connected");
  return nullptr;
}

// Why the parts of job.kept_step can't be had now, in words; empty: they can.
std::string JobTable::KeptWaits(const Job& job, const Membership& members) const {
  std::string why;
  for (int r = 0; r < job.plan.ranks_size() && why.empty(); ++r) {
    if (PutsParts(job.plan, r) && Holder(job, r, members, &why) != nullptr) why.clear();
  }
  return why;
}

std::vector<std::string> JobTable::KeptOn(const Job& job, int64_t step) const {
  std::vector<std::string> names;
  for (int r = 0; r < job.plan.ranks_size(); ++r) {
    if (!PutsParts(job.plan, r)) continue;
    const std::vector<std::string> holders = kept_.Holders(job.plan, r, step);
    for (const RankPlan& rank : job.plan.ranks()) {
      const bool named = std::find(names.begin(), names.end(), rank.node_name()) != names.end();
      if (!holders.empty() && rank.node_id() == holders.front() && !named)
        names.push_back(rank.node_name());
    }
  }
  return names;
}

std::vector<int64_t> JobTable::KeptSteps(const Job& job) const {
  if (job.status.generation() == 0 || job.plan.generation() != job.status.generation()) return {};
  return kept_.Whole(job.plan, std::max<int64_t>(0, job.status.checkpoint_step()));
}

void JobTable::LookAtKept(const std::string& id) {
  Job* job = Mutable(id);
  if (job == nullptr) return;
  // What can be had now comes before what a daemon keeps that may never come back.
  const auto newest_of = [&](bool reachable) -> int64_t {
    const int64_t stored = std::max<int64_t>(0, job->status.checkpoint_step());
    const std::vector<int64_t> steps = kept_.Whole(job->plan, stored, reachable);
    return steps.empty() ? -1 : steps.back();
  };
  int64_t newest = -1;
  if (job->TakesKept()) {
    newest = newest_of(true);
    if (newest < 0) newest = newest_of(false);
    if (newest >= 0 && !IsWorthBringing(*job, newest)) newest = -1;
  }
  if (newest >= 0) job->kept_on = KeptOn(*job, newest);
  if (newest == job->kept_step) return;
  job->kept_step = newest;
  job->kept_asked.reset();
  job->kept_begun.reset();
  job->kept_refused.clear();
  if (job->ended() || job->recovering) Reword(job);
  Touch(job);
}

void JobTable::WantKept(const std::string& id) {
  Job* job = Mutable(id);
  if (job == nullptr || job->kept_wanted || job->kept_step < 0) return;
  job->kept_wanted = true;
  Touch(job);
}

// A daemon whose heartbeats since the end show that its session is over has told of all that it
// keeps; the last one before may be older than the session. Nobody waits for one that is forgotten.
std::vector<std::string> JobTable::Untold(const Job& job, const Membership& members) const {
  std::vector<std::string> names;
  for (int i = 0; i < job.plan.ranks_size(); ++i) {
    if (!PutsParts(job.plan, i)) continue;
    const Member* member = members.Find(job.plan.ranks(i).node_id());
    if (member == nullptr) return {};
    const bool since = member->last_heartbeat >
                       job.ended_at.value_or(job.failed_at.value_or(absl::InfinitePast()));
    if (!member->alive() || !since || member->heartbeat.generation() == job.status.generation()) {
      names.push_back(job.plan.ranks(i).node_name());
    } else if (!kept_.KeepsLater(job.plan, i,
                                 std::max(job.kept_step, job.status.checkpoint_step()))) {
      return {};  // whatever the others keep, nothing later can become whole
    }
  }
  return names;
}

Commands JobTable::TickKept(Job* job, const Membership& members, absl::Time now) {
  const JobStatus& s = job->status;
  LookAtKept(job->id);
  const int64_t step = job->kept_step;
  const std::string waits = step < 0 ? "" : KeptWaits(*job, members);
  if (waits != job->kept_waits) Touch(job);
  job->kept_waits = waits;
  if (waits.empty()) job->kept_away.reset();
  if (!waits.empty() && !job->kept_away.has_value()) job->kept_away = now;
  if (!job->untold.empty()) {  // once they have told, nothing is added
    const std::vector<std::string> before = std::exchange(job->untold, Untold(*job, members));
    if ((job->ended() || job->recovering) && before != job->untold) Reword(job);
  }
  if (step < 0 || !waits.empty() || StaysKept(*job)) return {};
  const bool soon = job->recovering && !job->kept_refused.empty();
  const absl::Duration again = soon ? options_.ask_refused : options_.ask_kept;
  if (job->kept_asked.has_value() && now - *job->kept_asked < again) return {};
  job->kept_asked = now;
  if (!job->kept_begun.has_value()) job->kept_begun = now;
  Commands out;
  for (int i = 0; i < job->plan.ranks_size(); ++i) {
    if (!PutsParts(job->plan, i)) continue;
    std::string why;
    const Member* holder = Holder(*job, i, members, &why);
    if (holder == nullptr) continue;  // not without words that it waits
    Command& c = out.emplace_back();
    c.node_id = holder->node.id();
    KeptPart* part = c.message.mutable_put_kept();
    part->set_job_id(job->id);
    part->set_step(step);
    part->set_generation(s.generation());
    part->set_stage(job->plan.ranks(i).stage());
    part->set_stages(StagesOf(job->plan));
    part->set_replica(MakesLocalSteps(job->plan) ? job->plan.ranks(i).replica() : 0);
  }
  return out;
}

bool JobTable::OnCheckpointFailed(const std::string& job_id, uint64_t generation, int64_t step,
                                  const PartTrouble& of_part, absl::Time now) {
  Job* job = Current(job_id, generation);
  if (job == nullptr || step <= job->status.checkpoint_step()) return false;
  if (!job->active()) {  // a part that a daemon keeps came
    const bool news = step == job->kept_step && job->kept_refused != of_part.why;
    if (news) job->kept_refused = of_part.why;
    if (news) Touch(job);
    return news;
  }
  JobStatus& s = job->status;
  const bool first = step > job->failed_checkpoint;
  if (first) {  // else a further part of it, or another try
    job->failed_checkpoint = step;
    job->failed_parts.clear();
    s.set_failed_checkpoints(s.failed_checkpoints() + 1);
  }
  // They try again in turn: each has its say once, or the words would change with every try.
  job->failed_parts[{of_part.stage, of_part.replica}] = of_part;
  const std::string all = WhyNot(job->failed_parts);
  const int64_t more = s.failed_checkpoints() - 1;
  std::string trouble = absl::StrCat(kNotStored, "that of step ", step,
                                     more > 0 ? absl::StrCat(" and ", more, " before it") : "",
                                     " could not be: ", all);
  const std::string held = absl::StrCat("the last checkpoint is held and tried again: ", all);
  const bool at_its_end = AtItsEnd(*job);
  const bool said = !at_its_end || (s.cause().kind() == FailureCause::CHECKPOINT_HELD &&
                                    s.reason() == held.substr(0, kMaxReasonBytes));
  if (!first && said && trouble == job->checkpoint_trouble) return false;  // nothing to be stored
  job->checkpoint_trouble = std::move(trouble);
  if (at_its_end)
    SetState(job, s.state(), held, now, MakeCause(FailureCause::CHECKPOINT_HELD, -1, "", step));
  Touch(job);
  return first;
}

// A checkpoint may fail without a word to the coordinator: a path that is too slow, a daemon that
// could not export it. Those that fell due while this coordinator was away, or a daemon out of its
// reach, say nothing: a daemon that is heard again has the time that as many steps take.
void JobTable::CheckOverdue(Job* job, double step_s, absl::Time now) {
  const JobStatus& s = job->status;
  const int64_t every = job->spec.checkpoint().every();
  if (every <= 0 || s.failed_checkpoints() > 0 || !job->active()) return;
  const int64_t since = std::max(s.checkpoint_step(), job->plan.start_step());
  const int64_t steps = s.step() - since;
  if (steps < kOverduePeriods * every) return;
  for (const StageState& stage : job->stages) {
    if (!stage.ended && stage.gone_since.has_value()) return;
  }
  const double due_s = static_cast<double>(kOverduePeriods * every) * step_s;
  if (job->rejoined.has_value() && now - *job->rejoined < absl::Seconds(due_s)) return;
  job->checkpoint_trouble = absl::StrCat(
      kNotStored, "one is due every ", every, " steps, and none came in the last ", steps,
      ": the path of a daemon to the coordinator is slow, or its log says what is wrong");
}

// What would be lost if the job ended now: a sentence, with its beginning. What daemons keep on
// their disks is not.
std::string JobTable::FallBack(const Job& job) const {
  const int64_t stored = job.status.checkpoint_step();
  const std::vector<int64_t> kept = KeptSteps(job);
  if (!kept.empty() && kept.back() > stored) {
    return absl::StrCat(kFallBack, "goes on from step ", kept.back(),
                        ", whose checkpoint lies on its daemons' disks");
  }
  return stored < 0 ? absl::StrCat(kFallBack, "starts again at step 0: no checkpoint is stored yet")
                    : absl::StrCat(kFallBack, "goes on from step ", stored,
                                   ", the newest stored checkpoint");
}

void JobTable::RestoreTrouble(Job* job) {
  JobStatus& s = job->status;
  job->checkpoint_trouble = s.checkpoint_trouble();
  // Stored by an older version: the last warning is the checkpoints', if one has failed.
  if (job->checkpoint_trouble.empty() && s.failed_checkpoints() > 0 && !s.warnings().empty())
    job->checkpoint_trouble = *s.warnings().rbegin();
  const size_t end = job->checkpoint_trouble.rfind(kFallBack);
  if (end != std::string::npos) job->checkpoint_trouble.resize(end);
  s.clear_warnings();
  s.clear_checkpoint_trouble();
}

absl::Status JobTable::BeginRemove(const std::string& id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  if (it->second.status.state() == JOB_STOPPING)
    return absl::UnavailableError(
        absl::StrCat("job ", id, " is stopping; remove it once it has stopped"));
  if (!it->second.ended()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, " is ", StateName(it->second.status.state()),
                     ": stop it first (isthmus stop ", id, "), then remove it"));
  }
  if (it->second.removing)
    return absl::FailedPreconditionError(absl::StrCat("job ", id, " is being removed already"));
  it->second.removing = true;
  return absl::OkStatus();
}

void JobTable::EndRemove(const std::string& id, bool forget) {
  Job* job = Mutable(id);
  if (job != nullptr) job->removing = false;
  if (job != nullptr && forget) Drop(id);
}

void JobTable::SetRemoved(const std::string& id) {
  dirty_.forgotten.insert(id);
  RestoreRemoved({id});
}

void JobTable::RestoreRemoved(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) {
    if (removed_.insert(id).second) removed_in_order_.push_back(id);
  }
  for (; static_cast<int>(removed_.size()) > kMaxRemoved; removed_in_order_.pop_front())
    removed_.erase(removed_in_order_.front());
}

void JobTable::Drop(const std::string& id) {
  SetRemoved(id);
  dirty_.changed.erase(id);
  dirty_.new_plan.erase(id);
  unsaved_.erase(std::remove_if(unsaved_.begin(), unsaved_.end(),
                                [&](const StoredRecord& r) { return r.job_id == id; }),
                 unsaved_.end());
  jobs_.erase(id);
}

}  // namespace isthmus::coordinator
