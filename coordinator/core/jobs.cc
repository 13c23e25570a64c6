#include "coordinator/core/jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/core/job_names.h"
#include "proto/data/data_position.h"
#include "proto/job/job_state.h"
#include "proto/job/phases.h"
#include "proto/model/model_cost.h"
#include "proto/plan/agreements.h"
#include "proto/plan/deal.h"

namespace isthmus::coordinator {
namespace {

// What is left, in steps of the running phase: those of another one take the time of its
// operations.
double StepsLeft(const Job& job) {
  const JobStatus& s = job.status;
  if (job.spec.phases().empty())
    return static_cast<double>(std::max<int64_t>(0, s.steps() - s.step()));
  const auto flops = [&](int phase) {
    const ModelSpec model = PhaseJob(job.spec, phase).model();
    return StageCost(model, 0, model.layers(), 1).flops();
  };
  double steps = 0;
  for (int p = s.phase(); p < job.spec.phases_size(); ++p) {
    const int64_t from = std::max(s.step(), PhaseStart(job.spec, p));
    steps += static_cast<double>(std::max<int64_t>(0, PhaseEnd(job.spec, p) - from)) * flops(p);
  }
  return steps / flops(s.phase());
}

}  // namespace

int64_t EndOf(const Job& job) {
  return job.plan.has_job() ? job.plan.job().recipe().steps() : job.status.steps();
}

std::string StopWords(const Plan& plan) {
  const std::string round =
      absl::StrCat("round of ", plan.job().strategy().local_steps(), " steps");
  if (Deals(plan))
    return absl::StrCat("the model comes together at the end of the next ", round,
                        ", two rounds from here at most, and a checkpoint is written");
  return absl::StrCat(!MakesLocalSteps(plan) ? "the step"
                      : Streams(plan)        ? absl::StrCat("the ", round, ", or the next one,")
                                             : absl::StrCat("the ", round),
                      " is finished and a checkpoint written");
}

std::string PhaseWords(int phase, int phases) {
  return absl::StrCat("phase ", phase + 1, " of ", phases);
}

Command StopCommand(const std::string& node_id, const std::string& job_id, uint64_t generation,
                    bool graceful, const std::string& reason) {
  Command c;
  c.node_id = node_id;
  StopSession* stop = c.message.mutable_stop();
  stop->set_job_id(job_id);
  stop->set_generation(generation);
  stop->set_graceful(graceful);
  stop->set_reason(reason);
  return c;
}

// ---- look-ups ----

Job* JobTable::Mutable(const std::string& id) {
  auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second;
}

Job* JobTable::Current(const std::string& job_id, uint64_t generation) {
  Job* job = Mutable(job_id);
  return job != nullptr && job->status.generation() == generation && generation != 0 ? job
                                                                                     : nullptr;
}

const Job* JobTable::Find(const std::string& id_or_name) const {
  auto it = jobs_.find(id_or_name);
  if (it != jobs_.end()) return &it->second;
  const Job* newest = nullptr;
  for (const auto& [id, job] : jobs_) {
    if (job.spec.name() == id_or_name && (newest == nullptr || job.number > newest->number))
      newest = &job;
  }
  return newest;
}

int JobTable::StageOf(const Job& job, const std::string& node_id) {
  for (int s = 0; s < job.plan.ranks_size(); ++s) {
    if (job.plan.ranks(s).node_id() == node_id) return s;
  }
  return -1;
}

const Job* JobTable::JobOn(const std::string& node_id) const {
  for (const auto& [id, job] : jobs_) {
    if (job.active() && StageOf(job, node_id) >= 0) return &job;
  }
  return nullptr;
}

std::set<std::string> JobTable::Working() const {
  std::set<std::string> ids;
  for (const auto& [id, job] : jobs_) {
    if (!job.active() && !job.moving) continue;
    for (const RankPlan& stage : job.plan.ranks()) ids.insert(stage.node_id());
  }
  return ids;
}

bool JobTable::WantsAttention(const Job& job, absl::Time now) const {
  const JobState state = job.status.state();
  if (job.recovering) {
    return NewestNamed(*this, job.spec.name()) == &job && job.failed_at.has_value() &&
           now - *job.failed_at >= options_.recovery_attention;
  }
  return (state == JOB_PAUSED || state == JOB_FAILED) &&
         NewestNamed(*this, job.spec.name()) == &job && job.ended_at.has_value() &&
         now - *job.ended_at < options_.attention;
}

std::vector<const Job*> JobTable::All() const {
  std::vector<const Job*> all;
  for (const auto& [id, job] : jobs_) all.push_back(&job);
  std::sort(all.begin(), all.end(),
            [](const Job* a, const Job* b) { return a->number > b->number; });
  return all;
}

JobStatus JobTable::Status(const Job& job, absl::Time now) const {
  JobStatus s = job.status;
  for (const BoundaryTotals& t : job.boundaries) *s.add_boundaries() = t;
  for (std::string& warning : GoneWarnings(job, options_.lease, now))
    s.add_warnings(std::move(warning));
  if (!job.checkpoint_trouble.empty()) {
    s.set_checkpoint_trouble(absl::StrCat(job.checkpoint_trouble, FallBack(job)));
    s.add_warnings(s.checkpoint_trouble());
  }
  if (job.kept_step >= 0) s.add_warnings(KeptWords(job));
  if (s.state() == JOB_PENDING)
    s.set_waits_for(job.recovering ? std::string(job.recovery_waits) : s.reason());
  if (job.validates >= 0 && s.state() == JOB_RUNNING && s.reason().empty()) {
    s.set_reason(absl::StrCat("a validation pass of up to ", job.plan.job().recipe().eval_samples(),
                              " samples after step ", job.validates));
  }
  if (job.running_since.has_value())
    s.set_elapsed_s(s.elapsed_s() + absl::ToDoubleSeconds(now - *job.running_since));
  double tokens = 0, seconds = 0;
  int steps = 0;
  for (auto it = job.recent.rbegin(); it != job.recent.rend() && steps < kRateWindow;
       ++it, ++steps) {
    if (it->record.generation() != s.generation()) break;
    tokens += it->record.tokens();
    seconds += it->record.step_s();
  }
  if (seconds > 0) s.set_tokens_per_s(tokens / seconds);
  const double step_s = steps > 0 ? seconds / steps : job.plan.predicted_step_s();
  s.set_eta_s(job.active() && job.validates < 0 ? step_s * StepsLeft(job) : 0);
  return s;
}

// ---- what changed ----

void JobTable::Touch(Job* job) {
  ++job->version;
  dirty_.changed.insert(job->id);
}

JobTable::Dirty JobTable::TakeDirty() { return std::exchange(dirty_, {}); }

std::vector<StoredRecord> JobTable::TakeRecords() {
  std::vector<StoredRecord> out(std::make_move_iterator(unsaved_.begin()),
                                std::make_move_iterator(unsaved_.end()));
  unsaved_.clear();
  return out;
}

void JobTable::GiveBackRecords(std::vector<StoredRecord> records) {
  unsaved_.insert(unsaved_.begin(), std::make_move_iterator(records.begin()),
                  std::make_move_iterator(records.end()));
  while (static_cast<int>(unsaved_.size()) > kMaxUnsavedRecords) unsaved_.pop_front();
}

void JobTable::SetState(Job* job, JobState state, const std::string& reason, absl::Time now,
                        const FailureCause& cause) {
  const bool runs = state == JOB_RUNNING || state == JOB_STOPPING;
  if (runs && !job->running_since.has_value()) job->running_since = now;
  if (!runs && job->running_since.has_value()) {
    job->status.set_elapsed_s(job->status.elapsed_s() +
                              absl::ToDoubleSeconds(now - *job->running_since));
    job->running_since.reset();
  }
  if (state != JOB_STARTING && state != JOB_STOPPING) job->deadline.reset();
  job->status.set_state(state);
  job->status.set_reason(reason.substr(0, kMaxReasonBytes));
  if (state != JOB_STOPPING) job->because.clear();  // there it is why it leaves
  if (state != JOB_STOPPING) job->moving = false;
  if (state != JOB_PENDING) {
    job->recovering = false;
    job->recovery_waits.clear();
  }
  if (cause.kind() == FailureCause::UNTOLD) {
    job->status.clear_cause();
  } else {
    *job->status.mutable_cause() = cause;
  }
  job->ended_at = job->ended() ? std::optional<absl::Time>(job->ended_at.value_or(now))
                               : std::optional<absl::Time>();
  Touch(job);
}

// Samples and tokens go with the steps, at the batch of each generation.
void JobTable::SetStep(Job* job, int64_t step) {
  job->status.set_step(step);
  job->status.set_samples(SamplesBefore(job->plan, step));
  job->status.set_tokens(job->status.samples() * job->plan.job().model().context());
}

// ---- submission ----

void JobTable::Forget() {
  while (static_cast<int>(jobs_.size()) >= kMaxJobs) {
    const Job* oldest = nullptr;
    for (const auto& [id, job] : jobs_) {
      if (job.ended() && (oldest == nullptr || job.number < oldest->number)) oldest = &job;
    }
    if (oldest == nullptr) return;
    dirty_.made_room.push_back(oldest->id);
    Drop(dirty_.made_room.back());
  }
}

absl::Status JobTable::NameIsFree(const std::string& name) const {
  const auto other = jobs_.find(name);
  if (other != jobs_.end() && other->second.spec.name() != name) {
    return absl::AlreadyExistsError(
        absl::StrCat("name: '", name, "' is the id of job '", other->second.spec.name(),
                     "', and one word can't mean two jobs: give this one another name"));
  }
  const Job* same = NewestNamed(*this, name);
  if (same == nullptr || same->ended()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("job '", name, "' (", same->id, ") is ", StateName(same->status.state()),
                   ". Stop it first (isthmus stop ", same->id, "), or give this one another name"));
}

absl::Status JobTable::Add(const std::string& id, uint64_t number, const JobSpec& spec,
                           bool wait_for_nodes, int64_t unix_ms) {
  if (jobs_.count(id) > 0)
    return absl::AlreadyExistsError(absl::StrCat("job id '", id, "' is taken"));
  RETURN_IF_ERROR(IdIsFree(*this, id));
  RETURN_IF_ERROR(NameIsFree(spec.name()));
  Forget();
  if (static_cast<int>(jobs_.size()) >= kMaxJobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxJobs, " jobs are waiting or running, the coordinator's limit"));
  }
  Job& job = jobs_[id];
  job.id = id;
  job.number = number;
  job.spec = spec;
  job.wait_for_nodes = wait_for_nodes;
  job.status.set_job_id(id);
  job.status.set_name(spec.name());
  job.status.set_steps(spec.recipe().steps());
  job.status.set_phases(spec.phases_size());
  job.status.set_checkpoint_step(-1);
  job.status.set_submitted_unix_ms(unix_ms);
  job.status.set_state(JOB_PENDING);
  Touch(&job);
  return absl::OkStatus();
}

void JobTable::SetPendingReason(const std::string& id, const std::string& reason) {
  Job* job = Mutable(id);
  if (job == nullptr || job->status.state() != JOB_PENDING) return;
  if (job->recovering) {
    job->recovery_waits = reason;
    Reword(job);
    return;
  }
  if (job->status.reason() == reason) return;
  job->status.set_reason(reason.substr(0, kMaxReasonBytes));
  Touch(job);
}

absl::Status JobTable::SetWaiting(const std::string& id, const JobSpec& spec,
                                  std::optional<int64_t> step_asked, bool accepts_changes) {
  Job* job = Mutable(id);
  if (job == nullptr || !job->ended() || job->removing)
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, " was started or removed meanwhile"));
  job->spec = spec;
  job->wait_for_nodes = true;
  job->step_asked = step_asked.has_value();
  job->accepts_changes = accepts_changes;
  job->because.clear();
  job->status.set_out_of_touch(false);
  job->status.set_steps(spec.recipe().steps());
  job->status.set_phases(spec.phases_size());
  if (step_asked.has_value()) job->status.set_checkpoint_step(*step_asked);
  job->status.set_state(JOB_PENDING);
  Touch(job);
  return absl::OkStatus();
}

absl::StatusOr<Commands> JobTable::Start(const std::string& id, const Plan& plan, absl::Time now,
                                         const JobSpec* whole) {
  Job* job = Mutable(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  if (job->active())
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, " runs already (generation ", job->status.generation(), ")"));
  if (job->removing)
    return absl::FailedPreconditionError(absl::StrCat("job ", id, " is being removed"));
  // The store never repeats one, but another start may have come between its number and this.
  if (plan.generation() <= job->status.generation())
    return absl::AbortedError(
        absl::StrCat("job ", id, " was started and ended meanwhile: try again"));
  while (!job->recent.empty() && job->recent.back().record.step() >= plan.start_step())
    job->recent.pop_back();
  unsaved_.erase(std::remove_if(unsaved_.begin(), unsaved_.end(),
                                [&](const StoredRecord& r) {
                                  return r.job_id == id && r.record.step() >= plan.start_step();
                                }),
                 unsaved_.end());
  // A rank may be killed between its part of the checkpoint and its record of the step before it.
  for (MergedStep& step : job->merger.TakeRest(plan.start_step(), job->plan)) {
    LogWarning("job ", id, ", step ", step.record.step(), ": of ", job->plan.ranks_size(),
               " ranks ", step.stages.size(), " told of it before the others were lost; its loss ",
               "and bytes in the log are of those");
    const int64_t unix_ms = job->recent.empty() ? 0 : job->recent.back().record.unix_ms();
    KeepRecord(job, std::move(step), unix_ms);
  }
  if (!SameCut(job->plan, plan) || job->plan.phase() != plan.phase()) job->boundaries.clear();
  job->plan = plan;
  job->spec = whole != nullptr ? *whole : plan.job();
  if (!job->moving) job->left_at.reset();
  BeginGeneration(job);
  job->stages.assign(plan.ranks_size(), StageState());
  job->merger = RecordMerger(plan.generation(), plan.ranks_size(), plan.start_step());
  job->watch = LinkWatch(plan);
  job->news.clear();
  job->started_at = now;
  job->failed_at.reset();
  job->progressed = now;
  job->failed_checkpoint = -1;
  job->failed_parts.clear();
  job->checkpoint_trouble.clear();
  job->stop_reason = job->leaving = job->leaving_node = "";
  JobStatus& s = job->status;
  s.set_generation(plan.generation());
  SetStep(job, plan.start_step());
  s.set_steps(job->spec.recipe().steps());
  s.set_phase(plan.phase());
  s.set_phases(job->spec.phases_size());
  s.set_checkpoint_step(plan.from_checkpoint() ? plan.start_step() : -1);
  s.set_failed_checkpoints(0);
  s.set_out_of_touch(false);
  SetState(job, JOB_STARTING,
           absl::StrCat("waiting for ", plan.ranks_size(),
                        plan.ranks_size() == 1 ? " daemon" : " daemons", " to get ready"),
           now);
  job->deadline = now + absl::Milliseconds(plan.deadlines().open_ms()) + options_.start_margin;
  dirty_.new_plan.insert(id);
  dirty_.truncated.push_back({id, plan.start_step()});
  Commands commands;
  for (const RankPlan& stage : plan.ranks()) {
    Command c;
    c.node_id = stage.node_id();
    *c.message.mutable_start() = plan;
    commands.push_back(std::move(c));
  }
  return commands;
}

void JobTable::Restore(Job job, int64_t stored_step, int64_t next_record_step, absl::Time now) {
  job.stages.assign(job.plan.ranks_size(), StageState());
  job.watch = LinkWatch(job.plan);
  job.merger = RecordMerger(job.status.generation(), job.plan.ranks_size(), next_record_step);
  if (job.active()) {
    for (StageState& stage : job.stages) {
      stage.prepared = job.status.state() != JOB_STARTING;
      stage.confirm_by = now + options_.confirm;
      stage.gone_since = now;
    }
    job.progressed = now;
    job.running_since = now;
    job.deadline = now + options_.confirm + absl::Milliseconds(job.plan.deadlines().open_ms());
    if (job.status.state() == JOB_STOPPING)
      job.deadline = *job.deadline + absl::Milliseconds(job.plan.deadlines().drain_ms());
    if (job.status.state() == JOB_RUNNING) job.deadline.reset();
    job.status.set_reason(
        "the coordinator restarted; waiting for the daemons of the job to come back");
    job.status.clear_cause();
  }
  RestoreTrouble(&job);
  RestoreRecovery(&job, now);
  if (job.ended()) job.ended_at = now;
  // One may have become whole after the last word that was stored of its job.
  const bool resumes =
      job.status.state() == JOB_PENDING && job.status.generation() != 0 && !job.step_asked;
  const bool late = (job.ended() || resumes) && stored_step > job.status.checkpoint_step();
  if (!late) job.status.set_checkpoint_step(stored_step);
  const std::string id = job.id;
  Job& restored = jobs_[id] = std::move(job);
  Touch(&restored);
  late ? OnCheckpoint(id, stored_step, now) : Reword(&restored);
}

void JobTable::MaybeRun(Job* job, absl::Time now) {
  if (job->status.state() != JOB_STARTING) return;
  int ready = 0;
  for (const StageState& s : job->stages) ready += s.prepared;
  if (ready == static_cast<int>(job->stages.size())) {
    job->start_took = now - job->started_at;
    SetState(job, JOB_RUNNING, "", now);
  } else {
    SetState(job, JOB_STARTING,
             absl::StrCat(ready, " of ", job->stages.size(), " daemons are ready"), now);
  }
}

absl::StatusOr<Commands> JobTable::Stop(const std::string& id, bool at_once, absl::Time now) {
  Job* job = Mutable(id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  if (job->status.state() == JOB_PENDING) {
    job->status.set_out_of_touch(false);
    const bool between = BeginsPhase(job->spec, job->status.checkpoint_step());
    StopEnded(job,
              job->recovering
                  ? absl::StrCat(job->because, "; stopped by the user before it went on")
              : between ? "stopped by the user between two phases"
                        : "stopped by the user before it started",
              FailureCause(), now);
    return Commands();
  }
  if (job->status.out_of_touch()) {
    job->status.set_out_of_touch(false);
    StopEnded(job,
              absl::StrCat(job->because, "; stopped by the user: what may still train ends once ",
                           "its daemons are heard again"),
              FailureCause(job->status.cause()), now);
    return Commands();
  }
  if (!job->active()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", id, " does not run: ", StateName(job->status.state()), ", ", job->status.reason()));
  }
  if (at_once || job->status.state() == JOB_STARTING) {
    Commands out = TellAll(*job, false, "stopped by the user", "");
    SetEnd(job, JOB_STOPPED,
           at_once ? "stopped by the user at once" : "stopped by the user while it was starting",
           now);
    return out;
  }
  if (job->status.state() == JOB_STOPPING) {
    job->leaving.clear();  // it does not go on without the daemon that leaves, or with a new plan
    job->moving = false;
    job->because.clear();
    Touch(job);
    return Commands();
  }
  return BeginStop(job, "stopped by the user",
                   absl::StrCat("the user asked to stop: ", StopWords(job->plan)), now);
}

Commands JobTable::BeginStop(Job* job, const std::string& reason, const std::string& words,
                             absl::Time now) {
  SetState(job, JOB_STOPPING, words, now);
  job->stop_reason = reason;
  const Deadlines& d = job->plan.deadlines();
  job->deadline = now + absl::Milliseconds(d.step_ms() + d.drain_ms()) + options_.start_margin;
  return TellAll(*job, true, reason, "");
}

}  // namespace isthmus::coordinator
