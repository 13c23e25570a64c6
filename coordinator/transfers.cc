// The half of Coordinator that moves checkpoints: parts in, answers out.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/coordinator.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(1);  // whether the caller has gone

}  // namespace

// ---- in ----

absl::StatusOr<std::unique_ptr<CheckpointStore::Part>> Coordinator::BeginPart(
    const PutCheckpointHeader& header) {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::UnavailableError("the coordinator is stopping");
    const Job* job = jobs_.Find(header.job_id());
    if (header.generation() == 0 && header.step() == 0) {
      if (job != nullptr)
        return absl::FailedPreconditionError(
            absl::StrCat("upload: job ", header.job_id(), " is there already"));
      if (header.stages() != 1 || header.file() != "weights.safetensors")
        return absl::InvalidArgumentError(
            "upload: one stage and its weights.safetensors are expected");
    } else if (job == nullptr || job->status.generation() != header.generation()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint part of job ", header.job_id().substr(0, 80), ", generation ",
          header.generation(), ": ",
          job == nullptr ? "there is no such job"
                         : absl::StrCat("the job is at generation ", job->status.generation())));
    } else if (header.stages() != job->plan.stages_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint part: ", header.stages(), " stages; the plan has ", job->plan.stages_size()));
    }
    if (puts_ >= kMaxPuts)
      return absl::UnavailableError(
          "the coordinator takes as many checkpoint parts as it can: try again");
    ++puts_;
  }
  auto part = checkpoints_->Begin(header);
  if (!part.ok()) {
    LogWarning(part.status().message());
    MutexLock lock(&mutex_);
    --puts_;
  }
  return part;
}

absl::StatusOr<bool> Coordinator::FinishPart(const PutCheckpointHeader& header,
                                             CheckpointStore::Part* part) {
  absl::StatusOr<bool> complete =
      part == nullptr ? absl::CancelledError("the transfer broke off") : part->Finish();
  int keep = 0;
  {
    MutexLock lock(&mutex_);
    --puts_;
    if (!complete.ok() || !*complete) return complete;
    const Job* job = jobs_.Find(header.job_id());
    if (job != nullptr) keep = job->spec.checkpoint().keep();
    jobs_.OnCheckpoint(header.job_id(), header.step(), Now());
    changed_.SignalAll();
  }
  LogInfo("job ", header.job_id(), ": checkpoint of step ", header.step(), " is whole");
  if (keep > 0) checkpoints_->Trim(header.job_id(), keep);
  return complete;
}

// ---- out ----

Coordinator::Fetch::~Fetch() {
  reader_.reset();
  MutexLock lock(&coordinator_->mutex_);
  coordinator_->fetches_.Leave(ticket_);
  coordinator_->fetch_cancels_.erase(ticket_);
  coordinator_->changed_.SignalAll();
}

void Coordinator::Fetch::Progress() {
  MutexLock lock(&coordinator_->mutex_);
  coordinator_->fetches_.Progress(ticket_, coordinator_->Now());
}

absl::StatusOr<std::unique_ptr<Coordinator::Fetch>> Coordinator::OpenFetch(
    const FetchCheckpointRequest& request, const Cancelled& cancelled,
    const std::function<void(int before)>& waits, std::function<void()> cancel) {
  FetchCheckpointRequest by_id = request;
  std::unique_ptr<Fetch> fetch;
  int before = 0;
  bool ends = false;
  {
    MutexLock lock(&mutex_);
    const Job* job = jobs_.Find(request.job_id());
    if (job != nullptr) by_id.set_job_id(job->id);  // a name is taken, too
    // Who names no tensors wants the whole model: a person, not a stage.
    const bool whole = request.tensors().empty() && request.what() != "state";
    ASSIGN_OR_RETURN(const uint64_t ticket,
                     fetches_.Enter(whole ? FetchLine::kExport : FetchLine::kDaemon));
    fetch.reset(new Fetch(this, ticket));
    before = fetches_.Before(ticket, Now());
  }
  if (before > 0) waits(before);  // it writes to the caller: not under the lock
  {
    MutexLock lock(&mutex_);
    while (!stopping_ && !cancelled() && fetches_.Before(fetch->ticket_, Now()) > 0)
      changed_.WaitUntil(&mutex_,
                         std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kLookAgain));
    ends = stopping_ || cancelled();
    if (!ends) fetch_cancels_[fetch->ticket_] = std::move(cancel);
  }
  if (ends) return absl::UnavailableError("the caller has gone, or the coordinator is stopping");
  ASSIGN_OR_RETURN(fetch->reader_, checkpoints_->Read(by_id, cancelled, &fetch->step_));
  fetch->Progress();
  return fetch;
}

void Coordinator::TickFetches() {
  for (uint64_t ticket : fetches_.Stalled(Now())) {
    auto it = fetch_cancels_.find(ticket);
    if (it == fetch_cancels_.end()) continue;
    LogWarning("a reader of a checkpoint took nothing for ", absl::FormatDuration(kFetchStall),
               "; its call is ended");
    it->second();
    fetch_cancels_.erase(it);
  }
}

}  // namespace isthmus::coordinator
