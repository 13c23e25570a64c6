// The part of JobTable that lets jobs go on by themselves (recovery.automatic): one whose
// generation ended otherwise than by the user's word waits as a resumed job does, from its newest
// checkpoint, on whichever daemons are there.
#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"

namespace isthmus::coordinator {

bool MayRecover(const Job& job) {
  const RecoverySpec& recovery = job.spec.recovery();
  return recovery.automatic() && job.interruptions < recovery.attempts() && !job.removing &&
         (job.status.step() > 0 || job.status.recoveries() > 0);  // a job that never ran is wrong
}

void JobTable::Interrupt(Job* job, JobState state, const std::string& because, absl::Time now,
                         const FailureCause& cause) {
  const bool cured = cause.kind() != FailureCause::DATA_DIFFERS;  // by time, or by other daemons
  if (!cured || !MayRecover(*job)) {
    const RecoverySpec& recovery = job->spec.recovery();
    const bool often = recovery.automatic() && job->interruptions >= recovery.attempts();
    SetEnd(job, state,
           often ? absl::StrCat(because,
                                "; it does not go on by itself any more: ", job->interruptions + 1,
                                job->interruptions == 0 ? " interruption" : " interruptions",
                                " without a new checkpoint (recovery.attempts)")
                 : because,
           now, cause);
    return;
  }
  SetEnd(job, state, because, now, cause);
  job->failed_at = now;
  job->not_before = now + job->interruptions * job->interruptions * options_.recovery_pause;
  ++job->interruptions;
  job->status.set_state(JOB_PENDING);
  job->ended_at.reset();
  job->recovering = job->wait_for_nodes = true;
  job->step_asked = job->accepts_changes = false;
  Reword(job);
}

// Nobody waits for its sessions any more; if they come back, they are told that they are not
// current.
void JobTable::Abandon(Job* job, absl::Time now) {
  if (!MayRecover(*job) || !NameIsFree(job->spec.name()).ok()) return;
  job->status.set_out_of_touch(false);
  Interrupt(job, job->status.state(), std::string(job->because), now,
            FailureCause(job->status.cause()));
}

void JobTable::GiveUpRecovery(const std::string& id, const std::string& why, absl::Time now) {
  Job* job = Mutable(id);
  if (job == nullptr || !job->recovering) return;
  const JobState state = job->status.checkpoint_step() >= 0 ? JOB_PAUSED : JOB_FAILED;
  SetEnd(job, state, absl::StrCat(job->because, "; it can't go on by itself: ", why), now,
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

bool JobTable::WaitsForKept(const Job& job, absl::Time now) const {
  return job.kept_step >= 0 && (!job.recovering || job.kept_waits.empty() ||
                                now - job.failed_at.value_or(now) < options_.recovery_kept);
}

}  // namespace isthmus::coordinator
