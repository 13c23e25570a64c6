// The half of Coordinator that plans and starts jobs.
#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/job_data.h"
#include "coordinator/service/coordinator.h"
#include "proto/job/job_defaults.h"
#include "proto/job/job_state.h"
#include "proto/plan/actions.h"
#include "proto/plan/schedule.h"

namespace isthmus::coordinator {
namespace {

constexpr int kPlanTries = 3;  // daemons may go or be taken while the planner thinks
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
constexpr int kGridColumns = 100;

}  // namespace

absl::StatusOr<JobSpec> CompleteJob(const JobSpec& job) {
  if (job.ByteSizeLong() > static_cast<size_t>(kMaxJobBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has ", job.ByteSizeLong(), " bytes; at most ", kMaxJobBytes, " are allowed"));
  }
  JobSpec full = job;
  FillDefaults(&full);
  full.mutable_model()->set_norm_epsilon(NormEpsilon(full.model()));
  RETURN_IF_ERROR(ValidateJob(full));
  return full;
}

namespace {

// More daemons, other daemons or time may cure it.
bool CuredByDaemons(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnavailable(status) ||
         absl::IsResourceExhausted(status) || absl::IsNotFound(status);
}

// What is missing, without the head that the words before it say as well.
absl::string_view WaitsFor(const absl::Status& status) {
  return absl::StripPrefix(status.message(), "daemons: ");
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

}  // namespace

PlannerInput Coordinator::Snapshot(const StartRequest& request, bool with_busy) {
  PlannerInput in;
  in.job_id = request.job_id;
  in.job = request.spec;
  in.start_step = request.start_step;
  in.from_checkpoint = request.from_checkpoint;
  in.data = request.data;
  if (const Job* job = jobs_.Find(request.job_id); job != nullptr && request.start_step > 0)
    in.previous = job->plan;
  const absl::Time now = Now();
  std::vector<std::string> ids;
  for (const auto& [id, m] : members_.members()) {
    const Job* job = jobs_.JobOn(id);
    if (!m.alive()) {
      in.absent.push_back(m.connected()
                              ? absl::StrCat(m.node.name(), " registered and is not heard yet")
                              : absl::StrCat(m.node.name(), " is lost, last heard ",
                                             DurationWords(m.silent(now)), " ago"));
    } else if (m.leaving) {
      in.absent.push_back(absl::StrCat(m.node.name(), " is ending"));
    } else if (job != nullptr && !with_busy) {
      in.absent.push_back(absl::StrCat(m.node.name(), " runs job ", job->id));
    } else if (m.heartbeat.generation() != 0 && job == nullptr) {
      in.absent.push_back(absl::StrCat(m.node.name(), " still ends its last session (generation ",
                                       m.heartbeat.generation(), ")"));
    } else {
      *in.topology.add_nodes() = compute_.Corrected(m.node);
      in.compute_factors[id] = compute_.Factor(m.node);
      in.paths[id] = m.path;
      ids.push_back(id);
    }
  }
  for (LinkMeasurement& link : links_.Among(ids)) *in.topology.add_links() = std::move(link);
  return in;
}

void Coordinator::WaitForIdleDaemons(const Cancelled& cancelled) {
  const auto until = SteadyAfter(options_.wait_for_daemons);
  MutexLock lock(&mutex_);
  while (!stopping_ && !cancelled() && std::chrono::steady_clock::now() < until) {
    bool ending = false;
    for (const auto& [id, member] : members_.members()) {
      ending = ending || (member.connected() && jobs_.JobOn(id) == nullptr &&
                          (!member.alive() || member.heartbeat.generation() != 0));
    }
    if (!ending) return;
    changed_.WaitUntil(&mutex_, SteadyAfter(kLookAgain));
  }
}

bool Coordinator::MayUse(const JobSpec& job, const Member& member) {
  const auto& named = job.strategy().nodes();
  return member.alive() &&
         (named.empty() || std::any_of(named.begin(), named.end(), [&](const std::string& name) {
            return name == member.node.name() || name == member.node.id();
          }));
}

void Coordinator::WaitForData(const JobSpec& job, const Cancelled& cancelled) {
  const auto until = SteadyAfter(options_.wait_for_data);
  MutexLock lock(&mutex_);
  while (!stopping_ && !cancelled() && std::chrono::steady_clock::now() < until) {
    std::vector<const NodeInfo*> nodes;
    for (const auto& [id, m] : members_.members()) {
      if (MayUse(job, m)) nodes.push_back(&m.node);
    }
    if (!DataMayCome(job, nodes, ISTHMUS_VERSION)) return;
    changed_.WaitUntil(&mutex_, SteadyAfter(kLookAgain));
  }
}

void Coordinator::WaitForLinks(const JobSpec& job, const Cancelled& cancelled) {
  const StrategySpec& strategy = job.strategy();
  if (strategy.stages() == 1 || strategy.nodes_size() == 1 || job.model().layers() == 1) return;
  const auto until = SteadyAfter(options_.wait_for_links);
  MutexLock lock(&mutex_);
  while (!stopping_ && !cancelled() && std::chrono::steady_clock::now() < until) {
    std::set<std::string> working;  // hosts: nothing is measured there meanwhile
    for (const std::string& id : jobs_.Working()) {
      if (const Member* m = members_.Find(id)) working.insert(HostOf(m->node.address()));
    }
    std::vector<std::string> ids;
    for (const auto& [id, m] : members_.members()) {
      if (MayUse(job, m) && working.count(HostOf(m.node.address())) == 0) ids.push_back(id);
    }
    if (static_cast<int>(ids.size()) < std::max(2, strategy.stages()) ||
        links_.Unmeasured(ids) == 0)
      return;
    changed_.WaitUntil(&mutex_, SteadyAfter(kLookAgain));
  }
}

absl::StatusOr<PlanReply> Coordinator::MakePlan(const PlanRequest& asked,
                                                const Cancelled& cancelled) {
  StartRequest request;
  if (asked.resume()) {
    ASSIGN_OR_RETURN(request,
                     PrepareResume(asked.job(), asked.job().name(), ResumeStep(asked), cancelled));
  } else {
    RETURN_IF_ERROR(StepNeedsResume(asked));
    ASSIGN_OR_RETURN(request.spec, CompleteJob(asked.job()));
    request.job_id = absl::StrCat(request.spec.name(), "-plan");
  }
  WaitForIdleDaemons(cancelled);
  WaitForLinks(request.spec, cancelled);
  WaitForData(request.spec, cancelled);
  PlannerInput free, all;
  {
    MutexLock lock(&mutex_);
    free = Snapshot(request, false);
    all = Snapshot(request, true);
  }
  absl::StatusOr<PlannedJob> planned = coordinator::MakePlan(free);
  if (!planned.ok() && CuredByDaemons(planned.status()) &&
      all.topology.nodes_size() > free.topology.nodes_size()) {
    absl::StatusOr<PlannedJob> later = coordinator::MakePlan(all);
    if (later.ok()) {
      later->warnings.push_back(
          absl::StrCat("this plan uses daemons that are busy now: ", WaitsFor(planned.status())));
      planned = std::move(later);
    }
  }
  RETURN_IF_ERROR(planned.status());
  PlanReply reply;
  std::vector<ActionList> schedule;
  for (int r = 0; r < planned->plan.ranks_size(); ++r)
    schedule.push_back(TrainOf(planned->plan, r));
  for (std::string& line : SchedulePicture(schedule, Wiring::Of(planned->plan),
                                           request.spec.strategy().queue_limit(), kGridColumns))
    *reply.add_schedule_grid() = std::move(line);
  if (!request.given_up.empty()) reply.add_warnings(request.given_up);
  for (std::string& w : planned->warnings) *reply.add_warnings() = std::move(w);
  *reply.mutable_plan() = std::move(planned->plan);
  *reply.mutable_changes() = {request.changes.begin(), request.changes.end()};
  return reply;
}

absl::StatusOr<std::string> Coordinator::NewJobId(const std::string& name) {
  const absl::Status good = CheckJobId(name);
  if (!good.ok() || name.size() > 63)
    return absl::InvalidArgumentError("name: must be 1-63 lower-case letters, digits and '-'");
  ASSIGN_OR_RETURN(const uint64_t number, store_->NextJobNumber());
  return absl::StrCat(name, "-", number);
}

absl::StatusOr<Coordinator::StartRequest> Coordinator::PrepareSubmit(const SubmitRequest& request,
                                                                     const Cancelled& cancelled) {
  if (request.resume()) {
    ASSIGN_OR_RETURN(
        StartRequest start,
        PrepareResume(request.job(),
                      request.job().name().empty() ? request.job_id() : request.job().name(),
                      ResumeStep(request), cancelled));
    start.wait_for_nodes = request.wait_for_nodes();
    if (!request.accept_changes()) RETURN_IF_ERROR(CheckAccepted(start.changes, start.start_step));
    return start;
  }
  RETURN_IF_ERROR(StepNeedsResume(request));
  StartRequest start;
  start.data = DataPosition();
  start.wait_for_nodes = request.wait_for_nodes();
  ASSIGN_OR_RETURN(start.spec, CompleteJob(request.job()));
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(jobs_.NameIsFree(start.spec.name()));
  }
  if (!request.init_uploaded()) {
    ASSIGN_OR_RETURN(start.job_id, NewJobId(start.spec.name()));
    return start;
  }
  start.job_id = request.job_id();
  RETURN_IF_ERROR(CheckJobId(start.job_id));
  if (checkpoints_->Newest(start.job_id) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the weights of job ", start.job_id, " were not uploaded: checkpoint 0 is not whole"));
  }
  start.from_checkpoint = true;
  return start;
}

absl::Status Coordinator::Admit(const StartRequest& request) {
  if (request.kind == StartRequest::kNew) {
    uint64_t number = 0;  // the order of submission is the number in the id
    if (!absl::SimpleAtoi(request.job_id.substr(request.job_id.rfind('-') + 1), &number))
      number = 0;
    RETURN_IF_ERROR(jobs_.Add(request.job_id, number, request.spec, request.wait_for_nodes,
                              absl::ToUnixMillis(absl::Now())));
    if (request.from_checkpoint) jobs_.OnCheckpoint(request.job_id, request.start_step, Now());
    return absl::OkStatus();
  }
  const Job* job = jobs_.Find(request.job_id);
  const bool may =
      job != nullptr &&
      (request.kind == StartRequest::kResume ? job->ended() : job->status.state() == JOB_PENDING);
  return may ? absl::OkStatus()
             : absl::CancelledError(
                   absl::StrCat("job ", request.job_id, " was started or stopped meanwhile"));
}

absl::StatusOr<PlannedJob> Coordinator::PlanAndStart(const StartRequest& request) {
  absl::Status last;
  for (int attempt = 0; attempt < kPlanTries; ++attempt) {
    PlannerInput in;
    {
      MutexLock lock(&mutex_);
      in = Snapshot(request, false);
    }
    ASSIGN_OR_RETURN(PlannedJob planned, coordinator::MakePlan(in));
    ASSIGN_OR_RETURN(const uint64_t generation, store_->NextGeneration());
    planned.plan.set_generation(generation);
    Commands commands;
    {
      MutexLock lock(&mutex_);
      last = absl::OkStatus();
      for (const RankPlan& s : planned.plan.ranks()) {
        const Member* m = members_.Find(s.node_id());
        if (m == nullptr || !m->alive() || m->leaving || jobs_.JobOn(s.node_id()) != nullptr) {
          last = absl::UnavailableError(absl::StrCat(
              "daemon ", s.node_name(), " went or was taken while the job was planned: try again"));
        }
      }
      if (!last.ok()) continue;
      RETURN_IF_ERROR(Admit(request));
      ASSIGN_OR_RETURN(commands, jobs_.Start(request.job_id, planned.plan, Now()));
      truncated_.push_back({request.job_id, request.start_step});
    }
    RETURN_IF_ERROR(SendPlan(request.job_id, generation, std::move(commands)));
    return planned;
  }
  return last;
}

absl::Status Coordinator::SendPlan(const std::string& job_id, uint64_t generation,
                                   Commands commands) {
  const absl::Status stored = WaitForFlush();
  MutexLock lock(&mutex_);
  const Job* job = jobs_.Find(job_id);
  const bool current = job != nullptr && job->status.generation() == generation &&
                       job->status.state() == JOB_STARTING;
  if (!stored.ok()) {
    if (current) Dispatch(jobs_.Stop(job_id, true, Now()).value_or(Commands()));
    return stored;
  }
  if (current) Dispatch(std::move(commands));
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<SubmitReply> Coordinator::Submit(const SubmitRequest& request,
                                                const Cancelled& cancelled) {
  absl::StatusOr<SubmitReply> reply = StartOrQueue(request, cancelled);
  if (!reply.ok() && request.init_uploaded()) DropUpload(request.job_id());
  return reply;
}

absl::StatusOr<SubmitReply> Coordinator::StartOrQueue(const SubmitRequest& request,
                                                      const Cancelled& cancelled) {
  ASSIGN_OR_RETURN(const StartRequest start, PrepareSubmit(request, cancelled));
  WaitForIdleDaemons(cancelled);
  WaitForLinks(start.spec, cancelled);
  WaitForData(start.spec, cancelled);
  if (cancelled()) return absl::CancelledError("the caller has gone");
  SubmitReply reply;
  reply.set_job_id(start.job_id);
  *reply.mutable_changes() = {start.changes.begin(), start.changes.end()};
  absl::StatusOr<PlannedJob> planned = PlanAndStart(start);
  if (planned.ok()) {
    *reply.mutable_plan() = std::move(planned->plan);
    if (!start.given_up.empty()) reply.add_warnings(start.given_up);
    for (std::string& w : planned->warnings) *reply.add_warnings() = std::move(w);
    return reply;
  }
  if (!request.wait_for_nodes() || !CuredByDaemons(planned.status())) return planned.status();
  {
    MutexLock lock(&mutex_);
    if (request.resume()) {
      jobs_.SetWaiting(start.job_id, start.spec, start.from_checkpoint ? start.start_step : -1);
    } else {
      RETURN_IF_ERROR(Admit(start));
    }
    jobs_.SetPendingReason(start.job_id,
                           absl::StrCat("waiting for daemons: ", WaitsFor(planned.status())));
  }
  RETURN_IF_ERROR(WaitForFlush());
  *reply.add_warnings() = absl::StrCat("the job waits for daemons: ", WaitsFor(planned.status()));
  return reply;
}

// ---- jobs that wait ----

void Coordinator::PendingLoop() {
  for (;;) {
    std::vector<std::string> waiting;
    {
      MutexLock lock(&mutex_);
      const auto until = SteadyAfter(options_.try_pending);
      while (!stopping_ && changed_.WaitUntil(&mutex_, until)) {
      }
      if (stopping_) return;
      for (const Job* job : jobs_.All()) {
        if (job->status.state() == JOB_PENDING && job->wait_for_nodes) waiting.push_back(job->id);
      }
    }
    std::reverse(waiting.begin(), waiting.end());  // first come, first served
    for (const std::string& id : waiting) TryPending(id);
  }
}

void Coordinator::TryPending(const std::string& job_id) {
  StartRequest start;
  JobSpec ran;
  start.kind = StartRequest::kPending;
  start.job_id = job_id;
  {
    MutexLock lock(&mutex_);
    const Job* job = jobs_.Find(job_id);
    if (job == nullptr || job->status.state() != JOB_PENDING) return;
    start.spec = job->spec;
    start.from_checkpoint = job->status.checkpoint_step() >= 0;
    start.start_step = std::max<int64_t>(0, job->status.checkpoint_step());
    ran = job->plan.has_job() ? job->plan.job() : job->spec;
  }
  const absl::Status taken = TakeUpCheckpoint(ran, &start);
  const absl::StatusOr<PlannedJob> planned = taken.ok() ? PlanAndStart(start) : taken;
  if (planned.ok() || absl::IsCancelled(planned.status())) return;
  MutexLock lock(&mutex_);
  jobs_.SetPendingReason(job_id, absl::StrCat("waiting for daemons: ", WaitsFor(planned.status())));
}

}  // namespace isthmus::coordinator
