// The half of JobTable that listens: words of daemons, time.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/core/jobs.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

std::string Who(const Job& job, int rank) {
  return absl::StrCat(StageWords(job.plan, rank), " on daemon ", job.plan.ranks(rank).node_name());
}

FailureCause CauseAt(const Job& job, FailureCause::Kind kind, int stage) {
  return MakeCause(kind, stage, job.plan.ranks(stage).node_id(), job.status.step());
}

// Whether its daemon tells of a rank of this plan.
bool NamesARank(const Job& job, const FailureCause& cause) {
  return cause.kind() == FailureCause::SESSION_FAILED && cause.rank() >= 0 &&
         cause.rank() < job.plan.ranks_size() &&
         cause.node() == job.plan.ranks(cause.rank()).node_id();
}

// As its daemon tells it, if that names a rank of this plan; else it is the daemon's own.
FailureCause CauseOfEvent(const Job& job, const SessionEvent& event, int stage) {
  FailureCause cause = event.cause();
  if (!NamesARank(job, cause)) cause = CauseAt(job, FailureCause::SESSION_FAILED, stage);
  return MakeCause(cause.kind(), cause.rank(), cause.node(), cause.step());
}

// A session's own story begins with who failed and when.
std::string WordsOfEvent(const Job& job, const SessionEvent& event, int stage) {
  const std::string words = event.message().substr(0, kMaxReasonBytes / 2);
  if (NamesARank(job, event.cause()) && !words.empty()) return words;
  return absl::StrCat(Who(job, stage), " failed at step ", event.step(), ": ", words);
}

void Append(Commands* out, Commands more) {
  for (Command& c : more) out->push_back(std::move(c));
}

}  // namespace

void JobTable::HeardAgain(Job* job, int stage, absl::Time now) {
  std::optional<absl::Time>& gone_since = job->stages[stage].gone_since;
  if (gone_since.has_value()) job->rejoined = now;
  gone_since.reset();
}

void JobTable::Confirm(Job* job, int stage, absl::Time now) {
  StageState& s = job->stages[stage];
  HeardAgain(job, stage, now);
  s.idle = false;
  if (!s.confirm_by.has_value()) return;
  s.confirm_by.reset();
  if (std::none_of(job->stages.begin(), job->stages.end(),
                   [](const StageState& t) { return t.confirm_by.has_value(); })) {
    SetState(job, job->status.state(), "", now);
    job->restored = false;
  }
}

Commands JobTable::CheckData(Job* job, absl::Time now) {
  int first = -1;
  for (int s = 0; s < static_cast<int>(job->stages.size()); ++s) {
    if (job->stages[s].fingerprint == 0) continue;
    if (first < 0) first = s;
    if (job->stages[s].fingerprint != job->stages[first].fingerprint) {
      return Fail(
          job, CauseAt(*job, FailureCause::DATA_DIFFERS, s),
          absl::StrCat(Who(*job, first), " and ", Who(*job, s), " read different data at '",
                       job->spec.data().path(), "': put the same file into both --data-dir"),
          "", now);
    }
  }
  return {};
}

// A link broke and is being mended; without words: it goes on. The cause names the other daemon.
void JobTable::OnLinkEvent(Job* job, const SessionEvent& event, int stage, absl::Time now) {
  std::map<int, BrokenLink>& broken = job->stages[stage].broken_links;
  const int peer = StageOf(*job, event.cause().node());
  const JobStatus& s = job->status;
  // Nothing else is the reason.
  const bool tells = s.state() == JOB_RUNNING && s.cause().kind() == FailureCause::UNTOLD;
  if (!event.message().empty()) {
    const std::string words =
        absl::StrCat(Who(*job, stage), ": ", event.message().substr(0, kMaxReasonBytes / 2));
    broken[peer] = {now, words};
    if (tells) SetState(job, JOB_RUNNING, words, now);
    return;
  }
  const auto mended = broken.find(peer);
  if (mended == broken.end()) return;
  const bool told = tells && s.reason() == mended->second.words;
  broken.erase(mended);
  if (told) SetState(job, JOB_RUNNING, broken.empty() ? "" : broken.begin()->second.words, now);
}

Commands JobTable::OnEvent(const std::string& node_id, const SessionEvent& event, absl::Time now) {
  Job* job = Current(event.job_id(), event.generation());
  if (job == nullptr) return {};
  const int stage = StageOf(*job, node_id);
  if (stage < 0 || stage != event.rank()) return {};
  if (job->status.out_of_touch() && event.state() == SessionEvent::FAILED) {
    // It ended while nobody was heard: none of them runs.
    if (!job->recovering) {
      SetEnd(job, job->status.state(), WordsOfEvent(*job, event, stage), now,
             CauseOfEvent(*job, event, stage));
    }
    Abandon(job, now);
    job->status.set_out_of_touch(false);
    Touch(job);
  }
  if (!job->active()) return {};
  StageState& s = job->stages[stage];
  Confirm(job, stage, now);
  if (event.state() == SessionEvent::RUNNING && event.code() != 0) {
    OnLinkEvent(job, event, stage, now);
    return {};
  }
  job->progressed = now;
  switch (event.state()) {
    case SessionEvent::PREPARED:
      s.fingerprint = event.corpus_fingerprint();
      [[fallthrough]];
    case SessionEvent::RUNNING:
      s.prepared = true;
      MaybeRun(job, now);
      return CheckData(job, now);
    case SessionEvent::CHECKPOINTED:
      return {};
    case SessionEvent::FINISHED:
      if (s.ended) return {};
      s.prepared = s.ended = true;
      SetStep(job, std::max(job->status.step(), std::min(event.step(), EndOf(*job))));
      Touch(job);
      MaybeFinish(job, now);
      return {};
    case SessionEvent::FAILED:
      if (s.ended) return {};
      s.ended = true;
      return Fail(job, CauseOfEvent(*job, event, stage), WordsOfEvent(*job, event, stage), node_id,
                  now);
    default:
      return {};
  }
}

absl::Status JobTable::OnStep(const std::string& node_id, const StepRecord& record, absl::Time now,
                              int64_t unix_ms, std::vector<LinkLook>* looks) {
  Job* job = Current(record.job_id(), record.generation());
  if (job == nullptr)
    return absl::NotFoundError(absl::StrCat("step record of job '", record.job_id().substr(0, 80),
                                            "' generation ", record.generation(),
                                            ", which is not current"));
  const int stage = StageOf(*job, node_id);
  if (stage < 0 || stage != record.rank())
    return absl::InvalidArgumentError(absl::StrCat("step record of rank ", record.rank(),
                                                   " from a daemon that does not hold it"));
  StageState& of = job->stages[stage];
  if (job->active() && !of.idle) {
    Confirm(job, stage, now);
    job->progressed = now;
    of.prepared = true;
    if (job->status.state() == JOB_STARTING) MaybeRun(job, now);
  } else if (of.idle && of.confirm_by.has_value()) {
    // What it told, or wrote down, while it had the session; how that ended may follow.
    of.confirm_by = std::max(*of.confirm_by, now + options_.settle);
  }
  ASSIGN_OR_RETURN(std::optional<MergedStep> merged, job->merger.Add(record));
  if (!merged.has_value()) return absl::OkStatus();
  std::vector<LinkLook> seen = job->watch.OnStep(merged->stages, merged->record.step_s());
  if (looks != nullptr && job->spec.recovery().follow()) *looks = std::move(seen);
  KeepRecord(job, *std::move(merged), unix_ms);
  EndMove(job, now);
  if (job->ended() || job->recovering) Reword(job);  // more steps were made than it says
  CheckOverdue(job, job->recent.back().record.step_s(), now);
  Touch(job);
  return absl::OkStatus();
}

void JobTable::KeepRecord(Job* job, MergedStep merged, int64_t unix_ms) {
  JobRecord& m = merged.record;
  for (const StepRecord& r : merged.stages)
    AddBytes(r, job->plan, m.has_validation_loss(), &job->boundaries);
  m.set_unix_ms(unix_ms);
  m.set_phase(job->plan.phase());
  JobStatus& s = job->status;
  SetStep(job, std::max(s.step(), m.step() + 1));
  s.set_loss(m.loss());
  if (s.first_loss() == 0) s.set_first_loss(m.loss());
  if (m.has_validation_loss()) {
    s.set_has_validation_loss(true);
    s.set_validation_loss(m.validation_loss());
    if (m.has_validation_accuracy()) s.set_validation_accuracy(m.validation_accuracy());
  }
  job->recent.push_back({++job->last_record, m});
  if (static_cast<int>(job->recent.size()) > kRecentRecords) job->recent.pop_front();
  unsaved_.push_back({job->id, std::move(m)});
  while (static_cast<int>(unsaved_.size()) > kMaxUnsavedRecords) unsaved_.pop_front();
}

Commands JobTable::OnRegistered(const std::string& node_id, const isthmus::Register& request,
                                bool restarted, absl::Time now) {
  Commands out;
  kept_.Told(node_id, request.kept());
  const uint64_t generation = request.running_generation();
  for (auto& [id, job] : jobs_) {
    const int stage = StageOf(job, node_id);
    if (stage < 0) continue;
    const bool ran_alone =
        request.running_job_id() == id && job.status.out_of_touch() &&
        (generation == job.status.generation() || (generation == 0 && !restarted));
    if (!job.active() && !(ran_alone && Revive(&job, now))) {
      // Its session is gone: what they ran alone is over.
      const bool lost = restarted && generation == 0 && !job.stages[stage].ended;
      if (job.status.out_of_touch() && lost && !job.restored) {
        Abandon(&job, now);
        job.status.set_out_of_touch(false);
        Touch(&job);
      }
      continue;
    }
    StageState& s = job.stages[stage];
    HeardAgain(&job, stage, now);
    if (generation == job.status.generation()) {
      Confirm(&job, stage, now);
      job.progressed = now;
      if (job.status.state() == JOB_STOPPING)
        out.push_back(StopCommand(
            node_id, id, generation, true,
            job.stop_reason.empty() ? std::string("stopped by the user") : job.stop_reason));
      continue;
    }
    if (s.ended) continue;
    s.idle = true;
    MaybeFinish(&job, now);
    if (!job.active()) continue;
    if (restarted && !s.confirm_by.has_value()) {
      Append(&out,
             Fail(&job, CauseAt(job, FailureCause::SESSION_GONE, stage),
                  absl::StrCat("daemon ", request.node().name(), " restarted and its session (",
                               StageWords(job.plan, stage), ") is gone"),
                  node_id, now));
    } else {
      s.confirm_by = std::min(s.confirm_by.value_or(now + options_.settle), now + options_.settle);
    }
  }
  if (generation != 0) {
    const Job* job = Current(request.running_job_id(), generation);
    if (job == nullptr || !job->active() || StageOf(*job, node_id) < 0) {
      out.push_back(StopCommand(node_id, request.running_job_id(), generation, false,
                                absl::StrCat("generation ", generation, " is no longer current")));
    }
  }
  return out;
}

Commands JobTable::OnLeaving(const std::string& node_id, const Leaving& leaving, absl::Time now) {
  Commands out;
  for (auto& [id, job] : jobs_) {
    const int stage = StageOf(job, node_id);
    if (!job.active() || stage < 0 || job.stages[stage].ended) continue;
    if (job.status.state() == JOB_STOPPING) continue;  // it ends in good order already
    const std::string reason =
        absl::StrCat("daemon ", job.plan.ranks(stage).node_name(), " left (",
                     leaving.reason().empty() ? "it was told to end"
                                              : leaving.reason().substr(0, kMaxLeavingBytes),
                     ")");
    job.leaving_node = node_id;
    Append(&out, Leave(&job, stage, reason,
                       absl::StrCat(reason, ", which ends in ",
                                    DurationWords(absl::Milliseconds(leaving.grace_ms())),
                                    " at the latest"),
                       now));
  }
  return out;
}

Commands JobTable::OnDrained(const std::string& node_id, absl::Time now) {
  Commands out;
  for (auto& [id, job] : jobs_) {
    const int stage = StageOf(job, node_id);
    if (!job.active() || stage < 0 || job.stages[stage].ended) continue;
    if (job.status.state() == JOB_STOPPING) continue;
    const std::string reason =
        absl::StrCat("daemon ", job.plan.ranks(stage).node_name(), " left (drained)");
    Append(&out, Leave(&job, stage, reason, reason, now));
  }
  return out;
}

Commands JobTable::Leave(Job* job, int rank, const std::string& reason, const std::string& words,
                         absl::Time now) {
  job->leaving = reason;
  if (job->status.state() == JOB_STARTING) {
    return Fail(job, CauseAt(*job, FailureCause::DAEMON_LEFT, rank), "it had not started", "", now);
  }
  Commands out = BeginStop(job, reason, absl::StrCat(words, ": ", StopWords(job->plan)), now);
  job->because = reason;  // stored: a coordinator that restarts meanwhile knows it
  return out;
}

// ---- time ----

Commands JobTable::Tick(const Membership& members, absl::Time now) {
  Commands out;
  for (auto& [id, job] : jobs_) {
    if (job.moving && job.recovering && now - job.failed_at.value_or(now) >= options_.recovery_ends)
      job.moving = false;  // it waits for something: it is an interruption now
    Append(&out, job.active() ? TickJob(&job, members, now) : TickKept(&job, members, now));
    if (job.status.out_of_touch() && !job.recovering && job.failed_at.has_value() &&
        now - *job.failed_at >= options_.abandon)
      Abandon(&job, now);
  }
  for (const auto& [node_id, job_id] : kept_.TakeUseless(removed_)) {
    Command& c = out.emplace_back();
    c.node_id = node_id;
    c.message.set_removed_job(job_id);
  }
  kept_.Forget(members);
  return out;
}

// Whether a daemon that the job waits for does something: bytes of a checkpoint are progress. The
// others wait for it.
bool JobTable::Moves(const Job& job, const Membership& members, absl::Time now) const {
  const bool starting = job.status.state() == JOB_STARTING;
  const absl::Duration patience =
      std::max(options_.start_margin, absl::Milliseconds(job.plan.deadlines().checkpoint_ms()));
  for (int i = 0; i < static_cast<int>(job.stages.size()); ++i) {
    if (job.stages[i].ended || (starting && job.stages[i].prepared)) continue;
    if (members.Moves(job.plan.ranks(i).node_id(), job.status.generation(), patience, now))
      return true;
  }
  return false;
}

Commands JobTable::TickJob(Job* job, const Membership& members, absl::Time now) {
  if (const int64_t after = ValidatesAfter(*job, members);
      after != std::exchange(job->validates, after))
    Touch(job);
  for (int i = 0; i < static_cast<int>(job->stages.size()); ++i) {
    const StageState& s = job->stages[i];
    const std::string& node = job->plan.ranks(i).node_id();
    if (s.ended) continue;
    if (s.idle && s.confirm_by.has_value() && now >= *s.confirm_by) {
      return Fail(
          job, CauseAt(*job, FailureCause::SESSION_GONE, i),
          absl::StrCat("daemon ", job->plan.ranks(i).node_name(), " came back without its session"),
          node, now);
    }
  }
  if (Commands out = TickGone(job, members, now); !out.empty() || !job->active()) return out;
  if (job->deadline.has_value() && now >= *job->deadline && !Moves(*job, members, now)) {
    if (job->status.state() == JOB_STARTING) {
      std::string missing;
      for (int i = 0; i < static_cast<int>(job->stages.size()); ++i) {
        if (!job->stages[i].prepared)
          absl::StrAppend(&missing, missing.empty() ? "" : ", ", Who(*job, i));
      }
      return Fail(job, MakeCause(FailureCause::NOT_READY),
                  absl::StrCat("not ready in time: ", missing, " (see the log of that daemon)"), "",
                  now);
    }
    if (job->status.state() == JOB_STOPPING)
      return Fail(job, MakeCause(FailureCause::NOT_ENDED), "its daemons did not finish in time", "",
                  now);
  }
  return TickStalls(job, members, now);
}

Commands JobTable::TickStalls(Job* job, const Membership& members, absl::Time now) {
  if (job->status.state() != JOB_RUNNING) return {};
  const Deadlines& d = job->plan.deadlines();
  const bool first = job->status.step() == job->plan.start_step();
  const bool last = job->status.step() >= EndOf(*job);  // its checkpoint is being stored
  const absl::Duration limit = absl::Milliseconds(first  ? std::max(d.first_step_ms(), d.step_ms())
                                                  : last ? std::max(d.checkpoint_ms(), d.step_ms())
                                                         : d.step_ms());
  if (limit <= absl::ZeroDuration()) return {};
  int worst = -1;
  absl::Duration longest = limit;
  for (int i = 0; i < static_cast<int>(job->stages.size()); ++i) {
    StageState& s = job->stages[i];
    if (s.ended) continue;
    const absl::Duration still =
        members.NoProgressFor(job->plan.ranks(i).node_id(), job->status.generation(), now);
    if (still > longest) {
      longest = still;
      worst = i;
    }
    if (still <= limit) s.stall_reported = false;
  }
  if (worst < 0) {
    if (job->status.cause().kind() == FailureCause::NO_PROGRESS)
      SetState(job, JOB_RUNNING, "", now);
    return {};
  }
  const std::string words =
      absl::StrCat("no progress of ", Who(*job, worst), " for ", DurationWords(longest),
                   " though its heartbeats come (step deadline ", DurationWords(limit), ")");
  const FailureCause cause = CauseAt(*job, FailureCause::NO_PROGRESS, worst);
  if (longest > 2 * limit) return Fail(job, cause, words, "", now);
  if (!job->stages[worst].stall_reported) {
    job->stages[worst].stall_reported = true;
    SetState(job, JOB_RUNNING, words, now, cause);
  }
  return {};
}

}  // namespace isthmus::coordinator
