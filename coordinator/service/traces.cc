#include "coordinator/service/traces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/core/job_names.h"
#include "proto/job/job_state.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(250);  // whether the caller has gone

// Of the last steps; before the first one what was predicted.
absl::Duration StepTime(const Job& job) {
  double step_s = job.plan.predicted_step_s();
  for (const NumberedRecord& r : job.recent) {
    const bool late = r.number + 5 > job.last_record;
    if (late) step_s = std::max(step_s, r.record.step_s());
  }
  return absl::Seconds(step_s);
}

}  // namespace

absl::StatusOr<TraceJobReply> Traces::Trace(const TraceJobRequest& request,
                                            const Cancelled& cancelled) {
  MutexLock lock(&cores_->mutex);
  if (cores_->stopping) return Stopping();
  ASSIGN_OR_RETURN(const Job* job, JobCalled(cores_->jobs, request.job()));
  if (job == nullptr) return NoJob(request.job());
  if (job->status.state() != JOB_RUNNING) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job->id, " is ", StateName(job->status.state()),
                     ": only the steps of a running job can be traced"));
  }
  const Plan plan = job->plan;
  const absl::Duration step = StepTime(*job);
  ASSIGN_OR_RETURN(Commands readings,
                   cores_->traces.Begin(plan, request.steps(), absl::ToUnixNanos(SteadyNow())));
  daemons_->Send(cores_, std::move(readings));
  const absl::Status taken = Take(plan, step, cancelled);
  TraceJobReply reply = cores_->traces.End(plan.job_id());
  RETURN_IF_ERROR(taken);
  if (reply.traces().empty())
    return NothingCame(plan.job_id(), plan.generation(),
                       options_.quiet + options_.quiet_steps * step);
  return reply;
}

absl::Status Traces::Take(const Plan& plan, absl::Duration step, const Cancelled& cancelled) {
  const std::string& id = plan.job_id();
  TraceTable* const traces = &cores_->traces;
  RETURN_IF_ERROR(Wait(
      plan, [&] { return traces->ClocksRead(id); }, [] { return 0; }, options_.clocks, cancelled));
  daemons_->Send(cores_, traces->Ask(id, step));
  return Wait(
      plan, [&] { return traces->Done(id); }, [&] { return traces->heard(id); },
      options_.quiet + options_.quiet_steps * step, cancelled);
}

bool Traces::Runs(const Plan& plan) const {
  const Job* job = cores_->jobs.Find(plan.job_id());
  return job != nullptr && job->status.generation() == plan.generation() &&
         (job->status.state() == JOB_RUNNING || job->status.state() == JOB_STOPPING);
}

absl::Status Traces::Wait(const Plan& plan, const std::function<bool()>& enough,
                          const std::function<int64_t()>& heard, absl::Duration patience,
                          const Cancelled& cancelled) {
  const absl::Time end = SteadyNow() + options_.total;
  absl::Time until = SteadyNow() + patience;
  int64_t last = heard();
  while (!enough() && Runs(plan)) {
    if (cores_->stopping) return Stopping();
    if (cancelled()) return absl::CancelledError("the caller has gone");
    const absl::Time now = SteadyNow();
    if (const int64_t words = heard(); words != last) {
      last = words;
      until = now + patience;
    }
    const absl::Time deadline = std::min(until, end);
    if (now >= deadline) break;
    cores_->changed.WaitUntil(&cores_->mutex, SteadyAfter(std::min(kLookAgain, deadline - now)));
  }
  return absl::OkStatus();
}

absl::Status Traces::NothingCame(const std::string& job_id, uint64_t generation,
                                 absl::Duration patience) const {
  const Job* job = cores_->jobs.Find(job_id);
  if (job == nullptr) return NoJob(job_id);
  if (job->status.state() != JOB_RUNNING || job->status.generation() != generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_id, " ended before a step of it was traced: it is ",
                     StateName(job->status.state()), ", ", job->status.reason()));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "no daemon of job ", job_id, " told of a step within ", DurationWords(patience),
      ": they may be of a version that does not trace (isthmus nodes --json tells it)"));
}

}  // namespace isthmus::coordinator
