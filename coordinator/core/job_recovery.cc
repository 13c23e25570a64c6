// The part of JobTable that lets jobs go on by themselves (recovery.automatic): one whose
// generation ended otherwise than by the user's word waits as a resumed job does, from its newest
// checkpoint, on whichever daemons are there.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/core/jobs.h"
#include "proto/plan/local_checkpoints.h"

namespace isthmus::coordinator {
namespace {

constexpr double kSoonSeconds = 10;  // a checkpoint that gets here so soon is always worth it
constexpr int kPatience = 3;         // it is given up after so many times what it should take

}  // namespace

std::string WithoutAges(absl::string_view reason) {
  constexpr absl::string_view kAgo = " s ago";  // as DurationWords ends
  std::string out;
  for (size_t at; (at = reason.find(kAgo)) != absl::string_view::npos;) {
    size_t begin = at;
    while (begin > 0 && (absl::ascii_isdigit(static_cast<unsigned char>(reason[begin - 1])) ||
                         reason[begin - 1] == '.'))
      --begin;
    absl::StrAppend(&out, reason.substr(0, begin));
    reason.remove_prefix(at + kAgo.size());
  }
  return absl::StrCat(out, reason);
}

bool MayRecover(const Job& job) {
  const RecoverySpec& recovery = job.spec.recovery();
  // A job that never made a step is wrong, unless somebody just took a daemon away from it.
  const bool ran = job.status.step() > 0 || job.status.recoveries() > 0 || !job.leaving.empty();
  return recovery.automatic() && job.interruptions + 1 < recovery.attempts() && !job.removing &&
         ran;
}

void JobTable::Interrupt(Job* job, JobState state, const std::string& because, absl::Time now,
                         const FailureCause& cause) {
  const bool cured = cause.kind() != FailureCause::DATA_DIFFERS;  // by time, or by other daemons
  const bool moving = job->moving;
  if (!moving && (!cured || !MayRecover(*job))) {
    const RecoverySpec& recovery = job->spec.recovery();
    const bool often = recovery.automatic() && job->interruptions > 0 && cured;
    SetEnd(job, state,
           often ? absl::StrCat(because,
                                "; it does not go on by itself any more: ", job->interruptions + 1,
                                " interruptions without a new checkpoint (recovery.attempts)")
                 : because,
           now, cause);
    return;
  }
  SetEnd(job, state, because, now, cause);
  job->failed_at = now;
  job->not_before = now;
  if (!moving) {
    job->not_before += job->interruptions * job->interruptions * options_.recovery_pause;
    ++job->interruptions;
  }
  job->status.set_state(JOB_PENDING);
  job->ended_at.reset();
  job->recovering = job->wait_for_nodes = true;
  job->moving = moving;
  job->step_asked = false;
  job->accepts_changes = job->accepted && job->status.checkpoint_step() == job->plan.start_step();
  Reword(job);
}

// It is started anew where that can be. Sessions that come back before go on (Revive).
void JobTable::Abandon(Job* job, absl::Time now) {
  if (job->recovering || !MayRecover(*job) || Find(job->spec.name()) != job) return;
  Interrupt(job, job->status.state(), std::string(job->because), now,
            FailureCause(job->status.cause()));
}

void JobTable::SetAccepted(const std::string& id) {
  if (Job* job = Mutable(id); job != nullptr) job->accepted = true;
}

void JobTable::NotStored(const std::string& id, const std::string& why, bool asked,
                         absl::Time now) {
  Job* job = Mutable(id);
  if (job == nullptr || job->status.state() != JOB_STARTING) return;
  const std::string words = absl::StrCat("its plan can't be stored: ", why);
  const FailureCause cause = MakeCause(FailureCause::NOT_READY);
  const JobState state = job->status.checkpoint_step() >= 0 ? JOB_PAUSED : JOB_FAILED;
  asked ? SetEnd(job, state, words, now, cause) : Interrupt(job, state, words, now, cause);
}

void JobTable::BeginGeneration(Job* job) {
  if (!job->recovering) job->interruptions = 0;
  if (job->recovering && !job->moving) job->status.set_recoveries(job->status.recoveries() + 1);
  job->not_before = absl::InfinitePast();
  job->wait_for_nodes = job->step_asked = job->accepts_changes = false;
  job->accepted = job->restored = false;
  job->kept_step = -1;
  job->kept_waits.clear();
  job->kept_away.reset();
  job->kept_asked.reset();
  job->kept_refused.clear();
  job->kept_wanted = false;
  job->untold.clear();
}

void JobTable::RestoreRecovery(Job* job, absl::Time now) {
  job->restored = true;
  if (job->status.state() == JOB_STOPPING) job->leaving = job->stop_reason = job->because;
  if (!job->active()) RestoreBecause(job);
  if (job->status.out_of_touch()) job->failed_at = now;
  if (job->status.state() != JOB_PENDING || job->because.empty()) return;
  job->recovering = true;
  job->failed_at = now;
  if (job->TakesKept()) job->untold = KeptBy(*job);  // no daemon has told this process yet
}

void JobTable::GiveUpRecovery(const std::string& id, const std::string& why, absl::Time now) {
  Job* job = Mutable(id);
  if (job == nullptr || !job->recovering || job->status.state() != JOB_PENDING) return;
  job->status.set_out_of_touch(false);  // else it would be tried again and again
  const JobState state = job->status.checkpoint_step() >= 0 ? JOB_PAUSED : JOB_FAILED;
  const std::string words = absl::StrReplaceAll(why, {{"\n", " "}});
  SetEnd(job, state, absl::StrCat(job->because, "; it can't go on by itself: ", words), now,
         FailureCause(job->status.cause()));
}

bool JobTable::WaitsForEnds(const Job& job, const Membership& members, absl::Time now) const {
  if (!job.recovering || now - job.failed_at.value_or(now) >= options_.recovery_ends) return false;
  for (const RankPlan& rank : job.plan.ranks()) {
    const Member* member = members.Find(rank.node_id());
    if (member == nullptr || !member->connected() || member->leaving) continue;
    if (!member->alive() || member->last_heartbeat <= *job.failed_at ||
        member->heartbeat.generation() == job.status.generation())
      return true;
  }
  return false;
}

// Whether the parts of `step` get here sooner than its steps are made again, or soon in any case.
// With nothing stored there is no other way.
bool JobTable::IsWorthBringing(const Job& job, int64_t step) const {
  const int64_t stored = job.status.checkpoint_step();
  if (!job.recovering || stored < 0) return true;
  const double recent_s = RecentStepSeconds(job);
  const double step_s = recent_s > 0 ? recent_s : job.plan.predicted_step_s();
  const double again_s = static_cast<double>(step - stored) * step_s;
  return kept_.SecondsToBring(job.plan, step) <= std::max(kSoonSeconds, again_s);
}

bool JobTable::WaitsForKept(const Job& job, absl::Time now) const {
  // What a daemon told last before it was lost is older than what lies on its disk.
  const bool later =
      job.restored || (LocalEvery(job.plan) > 0 && IsWorthBringing(job, job.status.step()));
  if (job.recovering && later && !job.untold.empty() &&
      now - job.failed_at.value_or(now) < options_.recovery_kept)
    return true;
  if (job.kept_step < 0 || !job.recovering) return job.kept_step >= 0;
  // It may come slower than it should, or not at all: a path that broke, a full disk here. Of that
  // somebody is told, and what the daemons keep whole is worth more time.
  const double bring_s = std::max(kSoonSeconds, kept_.SecondsToBring(job.plan, job.kept_step));
  const absl::Duration patience =
      std::max(kPatience * absl::Seconds(bring_s),
               job.kept_refused.empty() ? absl::ZeroDuration() : options_.refused_patience);
  return now - job.kept_begun.value_or(now) < patience &&
         now - job.kept_away.value_or(now) < options_.recovery_kept;
}

}  // namespace isthmus::coordinator
