#include "coordinator/service/submission.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/job_names.h"
#include "coordinator/planner/phase_words.h"
#include "proto/job/job_names.h"
#include "proto/job/job_state.h"
#include "proto/plan/actions.h"
#include "proto/plan/schedule.h"

namespace isthmus::coordinator {
namespace {

constexpr int kPlanTries = 3;  // daemons may go or be taken while the planner thinks
constexpr absl::Duration kLaterPhases = absl::Seconds(10);  // that a submit plans them for warnings
constexpr absl::Duration kWaitForPass = absl::Seconds(2);   // over the jobs that wait, by a submit
constexpr int kGridColumns = 100;
constexpr char kThenStarts[] =
    ". It starts by itself once they are there and its daemons are, as with --wait; `isthmus stop` "
    "ends the wait";

// More daemons, other daemons or time may cure it.
bool CuredByDaemons(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnavailable(status) ||
         absl::IsResourceExhausted(status) || absl::IsNotFound(status);
}

std::string WaitsFor(const absl::Status& status) {
  return absl::StrCat("waiting for daemons: ", status.message());
}

// Of a SubmitRequest or a PlanRequest.
template <typename Request>
std::optional<int64_t> ResumeStep(const Request& request) {
  return request.has_resume_step() ? std::optional<int64_t>(request.resume_step()) : std::nullopt;
}

template <typename Request>
absl::Status StepNeedsResume(const Request& request) {
  return request.has_resume_step()
             ? absl::InvalidArgumentError(
                   "a step to go on from goes with --resume: a new job starts at step 0")
             : absl::OkStatus();
}

// What a new job of this name leaves behind.
std::string Unfinished(const JobTable& jobs, const std::string& name) {
  const Job* before = NewestNamed(jobs, name);
  if (before == nullptr || !before->ended() || before->status.state() == JOB_FINISHED) return "";
  const int64_t step = before->status.checkpoint_step();
  if (step <= 0) return "";
  return absl::StrCat("this is a new job from step 0: ", before->id, " of the same name is ",
                      StateName(before->status.state()), " and has a checkpoint of step ", step,
                      " of ", before->status.steps(), "; --resume goes on from that");
}

PlanReply ReplyOf(PlannedJob planned, const StartRequest& request) {
  PlanReply reply;
  std::vector<ActionList> schedule;
  std::vector<std::string> names;
  for (int r = 0; r < planned.plan.ranks_size(); ++r) {
    const RankPlan& rank = planned.plan.ranks(r);
    schedule.push_back(TrainOf(planned.plan, r));
    names.push_back(planned.plan.replicas_size() > 1
                        ? absl::StrCat("replica ", rank.replica(), ", stage ", rank.stage(), " ")
                        : absl::StrCat("stage ", rank.stage()));
  }
  for (std::string& line :
       SchedulePicture(schedule, Wiring::Of(planned.plan), request.spec.strategy().queue_limit(),
                       kGridColumns, names))
    *reply.add_schedule_grid() = std::move(line);
  if (!request.given_up.empty()) reply.add_warnings(request.given_up);
  for (std::string& w : planned.warnings) *reply.add_warnings() = std::move(w);
  *reply.mutable_plan() = std::move(planned.plan);
  *reply.mutable_changes() = {request.changes.begin(), request.changes.end()};
  return reply;
}

}  // namespace

// ---- plans ----

PlannerInput Submission::Snapshot(const StartRequest& request, bool with_busy) {
  PlannerInput in;
  in.job_id = request.job_id;
  in.phase = request.phase();
  in.phase_start = PhaseStart(request.spec, in.phase);
  in.phases = {request.spec.phases().begin(), request.spec.phases().end()};
  in.job = PhaseJob(request.spec, in.phase);
  in.start_step = request.start_step;
  in.from_checkpoint = request.from_checkpoint;
  in.data = request.data;
  AddTopology(cores_, with_busy, &in);
  if (const Job* job = cores_->jobs.Find(request.job_id)) in.follows = job->moving;
  return in;
}

PlannerViews Submission::Views(const StartRequest& request, const Cancelled& cancelled) {
  WaitForTopology(cores_, patience_, request.spec, cancelled);
  MutexLock lock(&cores_->mutex);
  return {Snapshot(request, false), Snapshot(request, true)};
}

absl::StatusOr<PlannerViews> Submission::ViewsOf(const JobSpec& job, const Cancelled& cancelled) {
  StartRequest request;
  ASSIGN_OR_RETURN(request.spec, CompleteJob(job));
  request.job_id = absl::StrCat(request.spec.name(), "-plan");
  return Views(request, cancelled);
}

absl::StatusOr<PlanReply> Submission::MakePlan(const PlanRequest& asked,
                                               const Cancelled& cancelled) {
  StartRequest request;
  if (asked.resume()) {
    ASSIGN_OR_RETURN(const std::string id, JobToResume(asked.job().name(), ""));
    ASSIGN_OR_RETURN(request, resumer_.Resume(asked.job(), id, ResumeStep(asked),
                                              /*may_queue=*/false, cancelled));
  } else {
    RETURN_IF_ERROR(StepNeedsResume(asked));
    ASSIGN_OR_RETURN(request.spec, CompleteJob(asked.job()));
    request.job_id = absl::StrCat(request.spec.name(), "-plan");
    MutexLock lock(&cores_->mutex);
    request.given_up = Unfinished(cores_->jobs, request.spec.name());
  }
  const auto [free, all] = Views(request, cancelled);
  absl::StatusOr<PlannedJob> planned = coordinator::MakePlan(free);
  bool used_busy = false;
  if (!planned.ok() && CuredByDaemons(planned.status()) &&
      all.topology.nodes_size() > free.topology.nodes_size()) {
    absl::StatusOr<PlannedJob> later = coordinator::MakePlan(all);
    if (later.ok()) {
      later->warnings.push_back(
          absl::StrCat("this plan uses daemons that are busy now: ", planned.status().message()));
      planned = std::move(later);
      used_busy = true;
    }
  }
  RETURN_IF_ERROR(planned.status());
  RETURN_IF_ERROR(AddPhaseWords(request, used_busy ? all : free, &planned->plan));
  return ReplyOf(*std::move(planned), request);
}

absl::StatusOr<PlannedJob> Submission::PlanLater(const StartRequest& request,
                                                 const PlannerInput& in, int phase) {
  PlannerInput later = in;
  later.phase = phase;
  later.phase_start = later.start_step = PhaseStart(request.spec, phase);
  later.job = PhaseJob(request.spec, phase);
  later.from_checkpoint = true;
  later.data.reset();
  later.previous.Clear();
  absl::StatusOr<PlannedJob> planned = coordinator::MakePlan(later);
  if (planned.ok()) return planned;
  return Annotate(planned.status(), PhaseWords(phase, request.spec.phases_size()));
}

absl::Status Submission::AddPhaseWords(const StartRequest& request, const PlannerInput& in,
                                       Plan* plan) {
  if (request.spec.phases().empty()) return absl::OkStatus();
  std::vector<std::string> lines = {WorkWords(request.spec)};
  for (int p = in.phase; p < request.spec.phases_size(); ++p) {
    if (p == in.phase) {
      lines.push_back(PhaseLine(request.spec, *plan));
      continue;
    }
    ASSIGN_OR_RETURN(const PlannedJob planned, PlanLater(request, in, p));
    lines.push_back(PhaseLine(request.spec, planned.plan));
  }
  lines.insert(lines.end(), plan->explanation().begin(), plan->explanation().end());
  *plan->mutable_explanation() = {lines.begin(), lines.end()};
  return absl::OkStatus();
}

absl::StatusOr<std::string> Submission::NewJobId(const std::string& name) {
  RETURN_IF_ERROR(CheckJobName(name));
  for (;;) {  // at most once for each job that there is
    ASSIGN_OR_RETURN(const uint64_t number, p_.store->NextJobNumber());
    std::string id = absl::StrCat(name, "-", number);
    MutexLock lock(&cores_->mutex);
    if (IdIsFree(cores_->jobs, id).ok()) return id;
  }
}

// ---- starts and stops ----

absl::StatusOr<std::string> Submission::JobToResume(const std::string& name,
                                                    const std::string& asked) {
  MutexLock lock(&cores_->mutex);
  const Job* job = NewestNamed(cores_->jobs, name);  // that of a job file, never an id
  if (job == nullptr) {
    ASSIGN_OR_RETURN(job, JobCalled(cores_->jobs, name.empty() ? asked : name));
  }
  if (job == nullptr) return Annotate(NoJob(name.empty() ? asked : name), "resume");
  return job->id;
}

absl::StatusOr<StartRequest> Submission::Prepare(const SubmitRequest& request,
                                                 const Cancelled& cancelled) {
  StartRequest start;
  if (request.resume()) {
    ASSIGN_OR_RETURN(const std::string id, JobToResume(request.job().name(), request.job_id()));
    ASSIGN_OR_RETURN(start, resumer_.Resume(request.job(), id, ResumeStep(request),
                                            request.wait_for_nodes(), cancelled));
    start.wait_for_nodes = request.wait_for_nodes();
    start.accepts_changes = request.accept_changes();
    if (!request.accept_changes()) RETURN_IF_ERROR(CheckAccepted(start.changes, start.start_step));
    return start;
  }
  RETURN_IF_ERROR(StepNeedsResume(request));
  start.data = DataPosition();
  start.wait_for_nodes = request.wait_for_nodes();
  ASSIGN_OR_RETURN(start.spec, CompleteJob(request.job()));
  {
    MutexLock lock(&cores_->mutex);
    RETURN_IF_ERROR(cores_->jobs.NameIsFree(start.spec.name()));
    start.given_up = Unfinished(cores_->jobs, start.spec.name());
  }
  if (!request.init_uploaded()) {
    ASSIGN_OR_RETURN(start.job_id, NewJobId(start.spec.name()));
    return start;
  }
  start.job_id = request.job_id();
  RETURN_IF_ERROR(CheckJobId(start.job_id));
  if (p_.files->Newest(start.job_id) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the weights of job ", start.job_id, " were not uploaded: checkpoint 0 is not whole"));
  }
  start.from_checkpoint = true;
  return start;
}

absl::Status Submission::Admit(const StartRequest& request) {
  if (request.kind == StartRequest::kNew) {
    uint64_t number = 0;  // the order of submission is the number in the id
    if (!absl::SimpleAtoi(request.job_id.substr(request.job_id.rfind('-') + 1), &number))
      number = 0;
    RETURN_IF_ERROR(cores_->jobs.Add(request.job_id, number, request.spec, request.wait_for_nodes,
                                     absl::ToUnixMillis(absl::Now())));
    if (request.from_checkpoint)
      cores_->jobs.OnCheckpoint(request.job_id, request.start_step, SteadyNow());
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Resumer::StillNewest(request, cores_));
  const Job* job = cores_->jobs.Find(request.job_id);
  const bool may =
      job != nullptr &&
      (request.kind == StartRequest::kResume ? job->ended() : job->status.state() == JOB_PENDING);
  return may ? absl::OkStatus()
             : absl::AbortedError(absl::StrCat("job ", request.job_id,
                                               " was started, stopped or removed meanwhile: see "
                                               "`isthmus list` for what it does now"));
}

absl::Status Submission::StillFree(const Plan& plan) const {
  for (const RankPlan& s : plan.ranks()) {
    const Member* m = cores_->members.Find(s.node_id());
    if (m == nullptr || !m->alive() || m->leaving || m->drained ||
        HeldBy(*cores_, s.node_id(), plan.job_id()) != nullptr) {
      return absl::UnavailableError(absl::StrCat(
          "daemon ", s.node_name(), " went or was taken while the job was planned: try again"));
    }
  }
  return absl::OkStatus();
}

absl::Status Submission::HasWeights(const StartRequest& start) {
  if (!start.begins_phase() || p_.phases->Ready(start)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the weights of ",
                                             PhaseWords(start.phase(), start.spec.phases_size()),
                                             " are being made of checkpoint ", start.start_step));
}

absl::StatusOr<PlannedJob> Submission::PlanAndStart(const StartRequest& request,
                                                    PlannerInput* planned_of) {
  absl::Status last;
  for (int attempt = 0; attempt < kPlanTries; ++attempt) {
    PlannerInput in;
    {
      MutexLock lock(&cores_->mutex);
      in = Snapshot(request, false);
    }
    ASSIGN_OR_RETURN(PlannedJob planned, coordinator::MakePlan(in));
    ASSIGN_OR_RETURN(const uint64_t generation, p_.store->NextGeneration());
    planned.plan.set_generation(generation);
    Commands commands;
    {
      MutexLock lock(&cores_->mutex);
      last = StillFree(planned.plan);
      if (!last.ok()) continue;
      RETURN_IF_ERROR(Admit(request));
      ASSIGN_OR_RETURN(
          commands, cores_->jobs.Start(request.job_id, planned.plan, SteadyNow(), &request.spec));
      if (request.accepts_changes) cores_->jobs.SetAccepted(request.job_id);
    }
    RETURN_IF_ERROR(SendPlan(request.job_id, request.kind, generation, std::move(commands)));
    if (planned_of != nullptr) *planned_of = std::move(in);
    return planned;
  }
  return last;
}

absl::Status Submission::SendPlan(const std::string& job_id, StartRequest::Kind kind,
                                  uint64_t generation, Commands commands) {
  const absl::Status stored = p_.recorder->Sync();
  MutexLock lock(&cores_->mutex);
  const Job* job = cores_->jobs.Find(job_id);
  const bool current = job != nullptr && job->status.generation() == generation &&
                       job->status.state() == JOB_STARTING;
  if (!stored.ok()) {
    if (current) {
      cores_->jobs.NotStored(job_id, std::string(stored.message()), kind != StartRequest::kPending,
                             SteadyNow());
    }
    return stored;
  }
  if (current) p_.daemons->Send(cores_, std::move(commands));
  cores_->changed.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<SubmitReply> Submission::Submit(const SubmitRequest& request,
                                               const Cancelled& cancelled) {
  absl::StatusOr<SubmitReply> reply = StartOrQueue(request, cancelled);
  if (!reply.ok() && request.init_uploaded()) p_.checkpoints->DropUpload(request.job_id());
  return reply;
}

absl::StatusOr<SubmitReply> Submission::StartOrQueue(const SubmitRequest& request,
                                                     const Cancelled& cancelled) {
  ASSIGN_OR_RETURN(const StartRequest start, Prepare(request, cancelled));
  const absl::Status weights = start.waits_for.empty() ? HasWeights(start) : absl::OkStatus();
  if (start.waits_for.empty() && weights.ok()) {
    WaitForTopology(cores_, patience_, start.spec, cancelled);
    // Those that came before it get daemons that have just become free.
    TryWaiting(kWaitForPass);
  }
  if (cancelled()) return absl::CancelledError("the caller has gone");
  SubmitReply reply;
  reply.set_job_id(start.job_id);
  *reply.mutable_changes() = {start.changes.begin(), start.changes.end()};
  PlannerInput in;
  absl::StatusOr<PlannedJob> planned = !weights.ok() ? weights
                                       : start.waits_for.empty()
                                           ? PlanAndStart(start, &in)
                                           : absl::UnavailableError(start.waits_for);
  if (planned.ok()) {
    *reply.mutable_plan() = std::move(planned->plan);
    if (!start.given_up.empty()) reply.add_warnings(start.given_up);
    for (std::string& w : planned->warnings) *reply.add_warnings() = std::move(w);
    const absl::Time until = SteadyNow() + kLaterPhases;
    for (int p = in.phase + 1; p < start.spec.phases_size(); ++p) {
      if (cancelled() || SteadyNow() > until) break;
      const absl::Status later = PlanLater(start, in, p).status();
      if (!later.ok())
        reply.add_warnings(absl::StrCat(later.message(), ". The job will wait there for daemons"));
    }
    return reply;
  }
  const bool waits = request.wait_for_nodes() || !weights.ok();
  if (!waits || !CuredByDaemons(planned.status())) return planned.status();
  {
    MutexLock lock(&cores_->mutex);
    if (request.resume()) {
      RETURN_IF_ERROR(cores_->jobs.SetWaiting(start.job_id, start.spec,
                                              start.step_asked ? ResumeStep(request) : std::nullopt,
                                              start.accepts_changes));
    } else {
      RETURN_IF_ERROR(Admit(start));
    }
    cores_->jobs.SetPendingReason(start.job_id,
                                  start.waits_for.empty() && weights.ok()
                                      ? WaitsFor(planned.status())
                                      : absl::StrCat("waiting: ", planned.status().message()));
  }
  RETURN_IF_ERROR(p_.recorder->Sync());
  *reply.add_warnings() = absl::StrCat(
      weights.ok() ? "the job waits for daemons: " : "the job waits: ", planned.status().message(),
      weights.ok() ? "" : kThenStarts);
  return reply;
}

absl::StatusOr<JobStatus> Submission::Stop(const std::string& name, bool at_once) {
  MutexLock lock(&cores_->mutex);
  ASSIGN_OR_RETURN(const Job* job, JobCalled(cores_->jobs, name));
  if (job == nullptr) return NoJob(name);
  ASSIGN_OR_RETURN(Commands commands, cores_->jobs.Stop(job->id, at_once, SteadyNow()));
  p_.daemons->Send(cores_, std::move(commands));
  cores_->changed.SignalAll();
  return cores_->jobs.Status(*job, SteadyNow());
}

// ---- jobs that wait ----

void Submission::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Submission::Join() {
  if (thread_.joinable()) thread_.join();
}

void Submission::Loop() {
  for (;;) {
    {
      MutexLock lock(&cores_->mutex);
      const auto until = SteadyAfter(try_pending_);
      while (!cores_->stopping && !p_.phases->TakeNews() &&
             cores_->changed.WaitUntil(&cores_->mutex, until)) {
      }
      if (cores_->stopping) return;
    }
    TryWaiting(absl::Hours(1));
    follower_.Look();
  }
}

void Submission::TryWaiting(absl::Duration patience) {
  std::vector<std::string> waiting;
  {
    MutexLock lock(&cores_->mutex);
    const auto until = SteadyAfter(patience);
    while (trying_ && !cores_->stopping && cores_->changed.WaitUntil(&cores_->mutex, until)) {
    }
    if (trying_) return;
    trying_ = true;
    for (const Job* job : cores_->jobs.All()) {
      if (job->status.state() == JOB_PENDING && job->wait_for_nodes) waiting.push_back(job->id);
    }
  }
  resumer_.ForgetAllBut(waiting);
  p_.phases->ForgetAllBut(waiting);
  std::reverse(waiting.begin(), waiting.end());  // first come, first served
  for (const std::string& id : waiting) TryPending(id);
  MutexLock lock(&cores_->mutex);
  trying_ = false;
  cores_->changed.SignalAll();
}

void Submission::TryPending(const std::string& job_id) {
  const absl::StatusOr<StartRequest> start = resumer_.Pending(job_id);
  const absl::Status may = start.ok() ? HasWeights(*start) : start.status();
  const absl::Status started = may.ok() ? PlanAndStart(*start).status() : may;
  if (started.ok() && start->given_up_step > start->start_step)
    LogWarning("job ", job_id, " goes on from checkpoint ", start->start_step, ": checkpoint ",
               start->given_up_step, ", which lies on its daemons' disks, did not come");
  if (started.ok() || absl::IsCancelled(started) || absl::IsAborted(started)) return;
  MutexLock lock(&cores_->mutex);
  if (absl::IsInvalidArgument(started))
    cores_->jobs.GiveUpRecovery(job_id, std::string(started.message()), SteadyNow());
  cores_->jobs.SetPendingReason(
      job_id, may.ok() ? WaitsFor(started) : absl::StrCat("waiting: ", started.message()));
}

}  // namespace isthmus::coordinator
