// The part of JobTable that ends a generation, and says in words what is lost and how to go on. A
// reason has two parts: what happened (Job.because), and what is stored of the job
// (CheckpointWords), which is made anew when a checkpoint comes late or daemons tell of their
// disks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/format.h"
#include "coordinator/core/jobs.h"
#include "proto/job/phases.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kNamed = 4;          // daemons in one sentence
constexpr size_t kMaxNoteRest = 100;  // bytes of a reason beside a note in it
constexpr size_t kMaxWaits = 500;     // of what a job that goes on by itself waits for

// At most `room` bytes of it, whole characters; what is left out is marked.
std::string Shortened(const std::string& words, size_t room) {
  constexpr absl::string_view kMore = "...";
  if (words.size() <= room) return words;
  size_t end = room - std::min(room, kMore.size());
  while (end > 0 && (static_cast<unsigned char>(words[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(words.substr(0, end), kMore);
}

std::string LostSteps(int64_t lost) {
  if (lost <= 0) return "";
  return lost == 1 ? " (the 1 step after it is lost)"
                   : absl::StrCat(" (the ", lost, " steps after it are lost)");
}

// What happened is cut where it is too long for both, never what is stored.
std::string EndWords(const Job& job) {
  const std::string waits = job.recovery_waits.empty()
                                ? ""
                                : absl::StrCat("; ", Shortened(job.recovery_waits, kMaxWaits));
  const std::string stored = absl::StrCat("; ", CheckpointWords(job), waits);
  const size_t room = kMaxReasonBytes - std::min(kMaxReasonBytes, stored.size());
  return absl::StrCat(Shortened(job.because, room), stored);
}

// ": submit --resume goes on from there", or that it does so by itself.
std::string Then(const Job& job, absl::string_view does) {
  return job.recovering ? absl::StrCat(": it ", does, " by itself")
                        : absl::StrCat(": submit --resume ", does);
}

std::vector<std::string> EveryDaemon(const Job& job) {
  return job.TakesKept() ? KeptBy(job) : std::vector<std::string>();
}

}  // namespace

std::string NamesOf(const std::vector<std::string>& names) {
  if (names.size() <= 1) return names.empty() ? "" : names[0];
  const size_t listed = names.size() <= kNamed ? names.size() - 1 : kNamed;
  const std::string first = absl::StrJoin(names.begin(), names.begin() + listed, ", ");
  return listed + 1 == names.size()
             ? absl::StrCat(first, " and ", names.back())
             : absl::StrCat(first, " and ", names.size() - listed, " others");
}

std::string LostWords(const std::string& name, absl::Duration apart, absl::string_view when) {
  const std::string at = apart < absl::Seconds(1) ? std::string("within a second of this")
                                                  : absl::StrCat(DurationWords(apart), " ", when);
  return absl::StrCat("daemon ", name, " is lost (its connection ended ", at, "); ");
}

std::string CheckpointWords(const Job& job) {
  const int64_t stored = job.status.checkpoint_step();
  const int64_t lost = job.status.step() - std::max<int64_t>(0, std::max(stored, job.kept_step));
  const bool kept = job.kept_step > stored;
  const std::string lies =
      absl::StrCat("checkpoint ", job.kept_step, " lies on the disks of its daemons");
  if (lost > 0 && !job.untold.empty()) {
    const std::string disks = absl::StrCat(
        " may lie on the ", job.untold.size() == 1 ? "disk" : "disks", " of ", NamesOf(job.untold),
        ", which ", job.untold.size() == 1 ? "has" : "have", " not told yet");
    return kept ? absl::StrCat(lies, ", and a newer one", disks,
                               Then(job, "goes on from the newest"))
           : stored < 0
               ? absl::StrCat("no checkpoint is stored yet, but one", disks,
                              Then(job, "goes on from it, or starts at step 0"))
               : absl::StrCat("its last stored checkpoint is of step ", stored, ", but a newer one",
                              disks, Then(job, "goes on from the newest"));
  }
  if (kept) return absl::StrCat(lies, LostSteps(lost), Then(job, "goes on from there"));
  if (stored < 0) {
    return absl::StrCat(
        "there is no checkpoint yet",
        lost > 0 ? absl::StrCat(", what the ", lost == 1 ? "1 step" : absl::StrCat(lost, " steps"),
                                " learnt is lost")
                 : "",
        Then(job, "starts at step 0"));
  }
  return absl::StrCat("its last checkpoint is of step ", stored, LostSteps(lost),
                      Then(job, "goes on from there"));
}

bool CalledLost(const FailureCause& cause, const std::string& node_id) {
  return std::find(cause.lost().begin(), cause.lost().end(), node_id) != cause.lost().end();
}

// ---- the reason of an end ----

void JobTable::SetEnd(Job* job, JobState state, const std::string& because, absl::Time now,
                      const FailureCause& cause) {
  SetState(job, state, "", now, cause);
  job->because = because;
  job->untold = EveryDaemon(*job);
  Reword(job);
}

void JobTable::StopEnded(Job* job, const std::string& because, const FailureCause& cause,
                         absl::Time now) {
  std::vector<std::string> untold = std::move(job->untold);
  SetEnd(job, JOB_STOPPED, because, now, cause);
  job->untold = std::move(untold);
  Reword(job);
}

void JobTable::Reword(Job* job) {
  if (job->because.empty() || job->active()) return;
  std::string reason = EndWords(*job);
  if (reason == job->status.reason()) return;
  job->status.set_reason(std::move(reason));
  Touch(job);
}

void JobTable::RestoreBecause(Job* job) {
  if (job->because.empty() || job->status.reason() == EndWords(*job)) return;
  job->untold = EveryDaemon(*job);  // it was not known then either
}

// A checkpoint became whole after the job had ended: less is lost than its reason says.
void JobTable::CameLate(Job* job, absl::Time now) {
  JobStatus& s = job->status;
  if (s.state() == JOB_FINISHED) return;
  if (s.checkpoint_step() >= s.steps()) {
    EndInOrder(job, std::string(job->because), now);
    return;
  }
  if (s.state() == JOB_FAILED) s.set_state(JOB_PAUSED);
  Reword(job);
}

// ---- the end of a generation ----

Commands JobTable::TellAll(const Job& job, bool graceful, const std::string& reason,
                           const std::string& except_node) const {
  Commands out;
  for (int s = 0; s < job.plan.ranks_size(); ++s) {
    const std::string& node = job.plan.ranks(s).node_id();
    if (node == except_node || job.stages[s].ended) continue;
    out.push_back(StopCommand(node, job.id, job.status.generation(), graceful, reason));
  }
  return out;
}

Commands JobTable::Fail(Job* job, FailureCause cause, const std::string& reason,
                        const std::string& except_node, absl::Time now, bool out_of_touch) {
  Commands out = TellAll(*job, false, reason, except_node);
  job->moving = false;  // it is an interruption now
  job->left_at.reset();
  std::string words = reason;
  for (int s = 0; s < job->plan.ranks_size();
       ++s) {  // a daemon that just vanished is the likelier cause
    const StageState& stage = job->stages[s];
    const RankPlan& at = job->plan.ranks(s);
    if (stage.gone_since.has_value() && !stage.ended && !stage.confirm_by.has_value() &&
        !CalledLost(cause, at.node_id())) {
      cause.add_lost(at.node_id());
      words =
          absl::StrCat(LostWords(at.node_name(), now - *stage.gone_since, "before this"), words);
    }
  }
  const JobStatus& s = job->status;
  const bool stopping = s.state() == JOB_STOPPING;
  const int64_t end = EndOf(*job), reached = stopping ? std::min(s.step(), end) : end;
  if (s.checkpoint_step() >= reached && s.checkpoint_step() > 0) {  // nothing is lost
    EndInOrder(job, words, now);
    return out;
  }
  job->failed_at = now;
  if (!job->leaving.empty()) {
    Interrupt(job, JOB_PAUSED,
              absl::StrCat(job->leaving, " before the job had ended in good order: ", words), now,
              cause);
    return out;
  }
  const JobState state = job->status.checkpoint_step() >= 0 ? JOB_PAUSED : JOB_FAILED;
  if (stopping) {
    SetEnd(job, JOB_STOPPED, absl::StrCat("stopped, but not in good order: ", words), now, cause);
  } else if (out_of_touch) {
    SetEnd(job, state, words, now, cause);
    job->status.set_out_of_touch(true);
  } else {
    Interrupt(job, state, words, now, cause);
  }
  return out;
}

void JobTable::MaybeFinish(Job* job, absl::Time now) {
  if (!job->active()) return;
  const bool whole = job->status.checkpoint_step() >= EndOf(*job);
  for (const StageState& s : job->stages) {
    if (!s.ended && !((s.idle || s.gone_since.has_value()) && whole)) return;
  }
  EndInOrder(job, "", now);
}

// Nothing is lost. `but`: what went wrong at the end all the same.
void JobTable::EndInOrder(Job* job, const std::string& but, absl::Time now) {
  JobStatus& s = job->status;
  const std::string note =
      but.empty()
          ? ""
          : absl::StrCat(" (though at the end: ", Shortened(but, kMaxReasonBytes - kMaxNoteRest),
                         ")");
  if (s.checkpoint_step() >= s.steps() || s.step() >= s.steps()) {
    SetStep(job, s.steps());
    SetState(job, JOB_FINISHED, absl::StrCat("all ", s.steps(), " steps are done", note), now);
  } else if (!job->leaving.empty()) {
    Interrupt(
        job, JOB_PAUSED,
        absl::StrCat(job->leaving, "; the job ended in good order after step ", s.step(), note),
        now);
  } else if (s.state() == JOB_STOPPING) {
    SetEnd(job, JOB_STOPPED, absl::StrCat("stopped by the user", note), now);
  } else if (s.checkpoint_step() >= EndOf(*job) || s.step() >= EndOf(*job)) {
    AwaitPhase(job, note, now);
  } else {
    SetEnd(job, JOB_STOPPED,
           absl::StrCat("its daemons ended in good order after step ", s.step(), note), now);
  }
}

// Its phase is done, and another one follows: it waits as a job does that is gone on with.
void JobTable::AwaitPhase(Job* job, const std::string& note, absl::Time now) {
  SetStep(job, std::max(job->status.step(), EndOf(*job)));
  job->wait_for_nodes = true;
  job->step_asked = job->accepts_changes = false;
  const int phases = job->status.phases();
  SetState(job, JOB_PENDING,
           absl::StrCat(PhaseWords(job->plan.phase(), phases), " is done", note, "; ",
                        PhaseWords(job->plan.phase() + 1, phases), " begins"),
           now);
}

void JobTable::PhaseFailed(const std::string& id, const std::string& why, absl::Time now) {
  Job* job = Mutable(id);
  if (job == nullptr || job->status.state() != JOB_PENDING) return;
  const int phase = PhaseAfter(job->spec, std::max<int64_t>(0, job->status.checkpoint_step()));
  job->status.set_out_of_touch(false);
  SetEnd(job, JOB_PAUSED,
         absl::StrCat(PhaseWords(phase, job->spec.phases_size()), " could not begin: ", why), now);
}

}  // namespace isthmus::coordinator
