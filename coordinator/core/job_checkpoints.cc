// The half of JobTable that knows what is stored of jobs: checkpoints, and which could not be.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/jobs.h"
#include "proto/job/job_state.h"

namespace isthmus::coordinator {
namespace {

constexpr char kNotStored[] = "checkpoints are not stored: ";
constexpr int kOverduePeriods = 3;  // one is under way, the next one due

// What would be lost if the job ended now: a sentence.
std::string FallBack(const JobStatus& s) {
  return s.checkpoint_step() < 0
             ? std::string("None is stored yet: a job that ends now starts again at step 0")
             : absl::StrCat("The newest stored one is of step ", s.checkpoint_step(),
                            ": a job that ends now falls back to it");
}

// Nothing is left to do but to store the last one.
bool AtItsEnd(const JobStatus& s) {
  return s.state() == JOB_STOPPING || (s.state() == JOB_RUNNING && s.step() >= s.steps());
}

}  // namespace

void JobTable::OnCheckpoint(const std::string& job_id, int64_t step, absl::Time now) {
  Job* job = Mutable(job_id);
  if (job == nullptr || step < job->status.checkpoint_step()) return;
  job->status.set_checkpoint_step(step);
  job->status.set_failed_checkpoints(0);
  job->checkpoint_trouble.clear();
  job->progressed = now;
  if (step >= job->status.steps()) Revive(job, now);  // all was done while nobody was heard
  if (job->active()) SetStep(job, std::max(job->status.step(), step));
  if (job->active() && job->status.cause().kind() == FailureCause::CHECKPOINT_HELD)
    SetState(job, job->status.state(), "", now);
  Touch(job);
  MaybeFinish(job, now);
}

bool JobTable::OnCheckpointFailed(const std::string& job_id, uint64_t generation, int64_t step,
                                  const std::string& why, absl::Time now) {
  Job* job = Current(job_id, generation);
  if (job == nullptr || !job->active() || step <= job->status.checkpoint_step()) return false;
  JobStatus& s = job->status;
  const bool first = step > job->failed_checkpoint;
  if (first) {  // else a further part of it, or another try
    job->failed_checkpoint = step;
    s.set_failed_checkpoints(s.failed_checkpoints() + 1);
  }
  const int64_t more = s.failed_checkpoints() - 1;
  job->checkpoint_trouble = absl::StrCat(kNotStored, "that of step ", step,
                                         more > 0 ? absl::StrCat(" and ", more, " before it") : "",
                                         " could not be: ", why, ". ", FallBack(s));
  if (AtItsEnd(s)) {
    SetState(job, s.state(), absl::StrCat("the last checkpoint is held and tried again: ", why),
             now, MakeCause(FailureCause::CHECKPOINT_HELD, -1, "", step));
  }
  Touch(job);
  return first;
}

// A checkpoint may fail without a word to the coordinator: a path that is too slow, a daemon that
// could not export it.
void JobTable::CheckOverdue(Job* job) {
  const JobStatus& s = job->status;
  const int64_t every = job->spec.checkpoint().every();
  if (every <= 0 || s.failed_checkpoints() > 0 || !job->active()) return;
  const int64_t since = std::max(s.checkpoint_step(), job->plan.start_step());
  const int64_t steps = s.step() - since;
  if (steps < kOverduePeriods * every) return;
  job->checkpoint_trouble = absl::StrCat(
      kNotStored, "one is due every ", every, " steps, and none came in the last ", steps,
      ": the path of a daemon to the coordinator is slow, or its log says what is wrong. ",
      FallBack(s));
}

void JobTable::RestoreTrouble(Job* job) {
  JobStatus& s = job->status;
  job->checkpoint_trouble = s.checkpoint_trouble();
  // Stored by an older version: the last warning is the checkpoints', if one has failed.
  if (job->checkpoint_trouble.empty() && s.failed_checkpoints() > 0 && !s.warnings().empty())
    job->checkpoint_trouble = *s.warnings().rbegin();
  s.clear_warnings();
  s.clear_checkpoint_trouble();
}

absl::Status JobTable::Remove(const std::string& id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return absl::NotFoundError(absl::StrCat("no job '", id, "'"));
  if (!it->second.ended()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, " is ", StateName(it->second.status.state()),
                     ": stop it first (isthmus stop ", id, "), then remove it"));
  }
  Drop(id);
  return absl::OkStatus();
}

void JobTable::Drop(const std::string& id) {
  dirty_.forgotten.insert(id);
  dirty_.changed.erase(id);
  dirty_.new_plan.erase(id);
  unsaved_.erase(std::remove_if(unsaved_.begin(), unsaved_.end(),
                                [&](const StoredRecord& r) { return r.job_id == id; }),
                 unsaved_.end());
  jobs_.erase(id);
}

}  // namespace isthmus::coordinator
