#include "coordinator/service/resume.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "coordinator/service/planner_view.h"
#include "proto/job/checkpoint_state.h"
#include "proto/job/job_defaults.h"
#include "proto/job/job_state.h"
#include "proto/model/family.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kLookAtKept = absl::Milliseconds(500);
constexpr absl::Duration kVerifyAgain = absl::Minutes(1);  // a damaged one may be put right

// Of a job that goes on by itself: what is refused stays so until somebody looks at it.
absl::Status Refused(const absl::Status& status, bool recovers) {
  const bool refused =
      absl::IsFailedPrecondition(status) || absl::IsNotFound(status) || absl::IsDataLoss(status);
  return recovers && refused ? absl::InvalidArgumentError(status.message()) : status;
}

JobSpec AsItRan(const Job& job) { return job.plan.has_job() ? job.plan.job() : job.spec; }

}  // namespace

absl::StatusOr<JobSpec> CompleteJob(const JobSpec& job) {
  if (job.ByteSizeLong() > static_cast<size_t>(kMaxJobBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has ", job.ByteSizeLong(), " bytes; at most ", kMaxJobBytes, " are allowed"));
  }
  JobSpec full = job;
  FillDefaults(&full);
  if (!IsMlp(full.model())) full.mutable_model()->set_norm_epsilon(NormEpsilon(full.model()));
  RETURN_IF_ERROR(ValidateJob(full));
  return full;
}

absl::StatusOr<int64_t> Resumer::Choose(const std::string& job_id, int64_t head,
                                        std::optional<int64_t> step) {
  const std::vector<int64_t> have = store_->Steps(job_id);
  if (!step.has_value()) {
    if (std::find(have.begin(), have.end(), head) != have.end()) return head;
    return store_->Newest(job_id);
  }
  if (std::find(have.begin(), have.end(), *step) != have.end()) return *step;
  return absl::NotFoundError(absl::StrCat(
      "resume: job ", job_id, " has no checkpoint of step ", *step,
      have.empty() ? ", nor any other"
                   : absl::StrCat("; there are those of steps ", absl::StrJoin(have, ", "))));
}

absl::Status Resumer::TakeUp(const JobSpec& ran, StartRequest* start) {
  if (!start->from_checkpoint || start->start_step == 0) {
    start->data = DataPosition();
    return absl::OkStatus();
  }
  FetchCheckpointRequest request;
  request.set_job_id(start->job_id);
  request.set_step(start->start_step);
  request.set_what("state");
  int64_t step = 0;
  ASSIGN_OR_RETURN(const auto reader, store_->Read(request, {}, &step));
  std::string json;
  RETURN_IF_ERROR(reader->Read(static_cast<size_t>(reader->total_bytes()), &json));
  ASSIGN_OR_RETURN(const CheckpointState state, ParseCheckpointState(json, step));
  DataNow now;
  {
    MutexLock lock(&cores_->mutex);
    now = DataOf(*cores_, start->spec);
  }
  ASSIGN_OR_RETURN(coordinator::Resume resume, CompareRuns(state, ran, start->spec, now));
  start->data = resume.data;
  start->changes = std::move(resume.changes);
  return absl::OkStatus();
}

// What later phases are made of has to be there: else the run would end at their begin.
absl::Status Resumer::CheckPhaseEnds(const StartRequest& start) const {
  const std::vector<int64_t> there = store_->Steps(start.job_id);
  for (const int64_t end : PhaseEndsNeeded(start.spec, start.start_step, start.start_step)) {
    if (std::find(there.begin(), there.end(), end) == there.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "resume: a phase after step ", start.start_step, " is made of checkpoint ", end,
          ", which is no longer there: give it `alpha: 1`, so that it is made of the phase before "
          "alone, or go on from a later checkpoint (isthmus checkpoints)"));
    }
  }
  return absl::OkStatus();
}

// Whether a daemon is there that has still to tell of its disk: its session is ending.
bool Resumer::WillTell(const Job& job) const {
  for (const RankPlan& rank : job.plan.ranks()) {
    const Member* member = cores_->members.Find(rank.node_id());
    const bool untold =
        std::find(job.untold.begin(), job.untold.end(), rank.node_name()) != job.untold.end();
    if (untold && member != nullptr && member->connected()) return true;
  }
  return false;
}

// The newest checkpoint of a job may be on its way from the disks of its daemons: it is worth a
// moment, also where a daemon is not back yet or still ends its session. Unavailable: it is not
// here by then. It is never given up without being asked for an older one.
absl::Status Resumer::WaitForKept(const std::string& name, absl::Duration patience,
                                  const Cancelled& cancelled) {
  const auto until = SteadyAfter(patience);
  MutexLock lock(&cores_->mutex);
  for (;;) {
    const Job* job = cores_->jobs.Find(name);
    if (job != nullptr) cores_->jobs.LookAtKept(job->id);
    if (job == nullptr || (job->kept_step < 0 && !WillTell(*job))) return absl::OkStatus();
    cores_->jobs.WantKept(job->id);
    if (cores_->stopping || cancelled() || std::chrono::steady_clock::now() >= until) {
      if (job->kept_step < 0) return absl::OkStatus();
      const int64_t stored = job->status.checkpoint_step();
      return absl::UnavailableError(absl::StrCat(
          "resume: ", KeptWords(*job), ". Try again when `isthmus status ", job->id,
          "` shows checkpoint ", job->kept_step,
          stored < 0
              ? absl::StrCat(", or give it up: isthmus rm ", job->id, ", then submit the job anew")
              : absl::StrCat(", or go on from the older one now with --step ", stored)));
    }
    cores_->changed.WaitUntil(&cores_->mutex, std::min(until, SteadyAfter(kLookAtKept)));
  }
}

bool Resumer::IsKept(const std::string& name, int64_t step) {
  MutexLock lock(&cores_->mutex);
  const Job* job = cores_->jobs.Find(name);
  if (job != nullptr) cores_->jobs.LookAtKept(job->id);
  return job != nullptr && job->kept_step == step;
}

absl::StatusOr<StartRequest> Resumer::Resume(const JobSpec& spec, const std::string& name,
                                             std::optional<int64_t> step, bool may_queue,
                                             const Cancelled& cancelled) {
  StartRequest start;
  start.kind = StartRequest::kResume;
  if (step.has_value() && IsKept(name, *step)) step.reset();  // the newest, on its way here
  start.step_asked = step.has_value();
  if (!step.has_value()) {
    const absl::Status here =
        WaitForKept(name, may_queue ? absl::ZeroDuration() : kept_patience_, cancelled);
    if (!here.ok() && !may_queue) return here;
  }
  JobSpec stored, ran;  // what is to be gone on with, what ran last
  int64_t head = -1;
  {
    MutexLock lock(&cores_->mutex);
    const Job* job = cores_->jobs.Find(name);
    if (job == nullptr) return Annotate(NoJob(name), "resume");
    if (job->status.state() == JOB_STOPPING)
      return absl::UnavailableError(
          absl::StrCat("resume: job ", job->id, " is stopping; try again once it has stopped"));
    if (!job->ended())
      return absl::FailedPreconditionError(absl::StrCat(
          "resume: job ", job->id, " is ", StateName(job->status.state()), " already"));
    start.job_id = job->id;
    stored = job->spec;
    ran = AsItRan(*job);
    start.head = head = job->status.checkpoint_step();
    cores_->jobs.LookAtKept(job->id);
    if (job->kept_step >= 0 && !step.has_value() && may_queue) {
      start.waits_for = KeptWords(*job);
    } else if (job->kept_step >= 0) {
      start.given_up = absl::StrCat("a newer checkpoint is given up: ", KeptWords(*job));
    } else if (job->status.step() > head && !job->untold.empty()) {
      start.given_up =
          absl::StrCat("a newer checkpoint is given up if there is one on the disks of ",
                       NamesOf(job->untold), ", not heard since the job ended");
    }
  }
  JobSpec asked = spec.model().layers() == 0 ? stored : spec;
  if (!asked.model().has_norm_epsilon() && !IsMlp(ran.model()))
    asked.mutable_model()->set_norm_epsilon(NormEpsilon(ran.model()));
  ASSIGN_OR_RETURN(start.spec, CompleteJob(asked));
  // Phases are compared with the checkpoint's by CompareRuns; all of them are made of model.*.
  if (start.spec.phases().empty() == stored.phases().empty()) {
    RETURN_IF_ERROR(
        SameModel(stored.phases().empty() ? ran.model() : stored.model(), start.spec.model()));
  }
  ASSIGN_OR_RETURN(const int64_t chosen, Choose(start.job_id, head, step));
  if (chosen >= 0) RETURN_IF_ERROR(store_->Verify(start.job_id, chosen, cancelled));
  start.from_checkpoint = chosen >= 0;
  start.start_step = std::max<int64_t>(0, chosen);
  RETURN_IF_ERROR(TakeUp(ran, &start));
  if (start.start_step == 0)  // checkpoint 0 is a model that was read in: that of the first phase
    RETURN_IF_ERROR(SameModel(PhaseJob(stored, 0).model(), PhaseJob(start.spec, 0).model()));
  RETURN_IF_ERROR(CheckPhaseEnds(start));
  return start;
}

void Resumer::ForgetAllBut(const std::vector<std::string>& pending) {
  for (auto it = verified_.begin(); it != verified_.end();) {
    const bool waits = std::find(pending.begin(), pending.end(), it->first) != pending.end();
    it = waits ? std::next(it) : verified_.erase(it);
  }
}

absl::Status Resumer::VerifyOnce(const std::string& job_id, int64_t step) {
  Verified& known = verified_[job_id];
  const absl::Time now = SteadyNow();
  if (known.step == step && (known.status.ok() || now - known.at < kVerifyAgain))
    return known.status;
  known = {step, store_->Verify(job_id, step, nullptr), now};
  return known.status;
}

absl::StatusOr<StartRequest> Resumer::Pending(const std::string& job_id) {
  StartRequest start;
  start.kind = StartRequest::kPending;
  start.job_id = job_id;
  JobSpec ran;
  int64_t head = -1;
  bool resumed = false, recovers = false;
  {
    MutexLock lock(&cores_->mutex);
    const Job* job = cores_->jobs.Find(job_id);
    if (job == nullptr || job->status.state() != JOB_PENDING)
      return absl::CancelledError("the job does not wait");
    cores_->jobs.LookAtKept(job_id);
    const absl::Time now = SteadyNow();
    if (job->recovering && now < job->not_before)
      return absl::UnavailableError("it is tried again in a moment, as it was interrupted before");
    if (cores_->jobs.WaitsForEnds(*job, cores_->members, now))
      return absl::UnavailableError("its daemons end their sessions");
    if (cores_->jobs.WaitsForKept(*job, now)) {
      return absl::UnavailableError(
          job->kept_step >= 0
              ? KeptWords(*job)
              : absl::StrCat("what the disks of ", NamesOf(job->untold),
                             " hold is not known since ",
                             job->restored ? "the coordinator's restart" : "they were heard last"));
    }
    start.given_up_step = job->kept_step;
    recovers = job->recovering;
    start.spec = job->spec;
    start.step_asked = job->step_asked;
    start.accepts_changes = job->accepts_changes;
    start.head = head = job->status.checkpoint_step();
    resumed = job->status.generation() != 0;
    ran = AsItRan(*job);
  }
  if (resumed) {
    ASSIGN_OR_RETURN(
        head, Choose(job_id, head,
                     start.step_asked && head >= 0 ? std::optional<int64_t>(head) : std::nullopt));
    if (head >= 0) RETURN_IF_ERROR(Refused(VerifyOnce(job_id, head), recovers));
  }
  start.from_checkpoint = head >= 0;
  start.start_step = std::max<int64_t>(0, head);
  RETURN_IF_ERROR(Refused(TakeUp(ran, &start), recovers));
  // It ran as its job file says: of what it waits for to go on by itself, only the text is another.
  if (recovers) {
    start.changes.erase(std::remove_if(start.changes.begin(), start.changes.end(),
                                       [](const FieldChange& c) { return c.field() != "data"; }),
                        start.changes.end());
  }
  // The text, or another checkpoint than when it was queued, may make another training of it.
  if (!start.accepts_changes)
    RETURN_IF_ERROR(Refused(CheckAccepted(start.changes, start.start_step), recovers));
  return start;
}

absl::Status Resumer::StillNewest(const StartRequest& start, Cores* cores) {
  if (start.kind == StartRequest::kNew || start.step_asked) return absl::OkStatus();
  cores->jobs.LookAtKept(start.job_id);
  const Job* job = cores->jobs.Find(start.job_id);
  const bool newer = job != nullptr && job->kept_step > start.given_up_step;
  if (job == nullptr || (!newer && job->status.checkpoint_step() == start.head))
    return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("a newer checkpoint came to light while the job was planned",
                   !newer ? "" : absl::StrCat(": ", KeptWords(*job)), ". Try again"));
}

}  // namespace isthmus::coordinator
