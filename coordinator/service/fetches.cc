#include "coordinator/service/fetches.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/job_names.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(1);  // whether the caller has gone

}  // namespace

void Fetches::Stop() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  changed_.SignalAll();
}

Fetches::Fetch::~Fetch() {
  reader_.reset();
  MutexLock lock(&owner_->mutex_);
  owner_->line_.Leave(ticket_);
  owner_->cancels_.erase(ticket_);
  owner_->changed_.SignalAll();
}

void Fetches::Fetch::Progress() {
  MutexLock lock(&owner_->mutex_);
  owner_->line_.Progress(ticket_, SteadyNow());
}

bool Fetches::HasParts(const FetchCheckpointRequest& request) const {
  const int replica = request.what() == "weights" ? 0 : request.replica();
  const std::string file =
      request.what() == "state" ? "state.json" : request.what() + ".safetensors";
  return std::any_of(request.have().begin(), request.have().end(), [&](const LocalPart& part) {
    return part.file() == file && part.replica() == replica &&
           store_->Has(request.job_id(), request.step(), part);
  });
}

absl::StatusOr<std::unique_ptr<Fetches::Fetch>> Fetches::Open(
    const FetchCheckpointRequest& request, const Cancelled& cancelled,
    const std::function<void(int before)>& waits, std::function<void()> cancel) {
  FetchCheckpointRequest by_id = request;
  // Who names no tensors wants the whole model: a person, not a stage.
  const bool whole = request.tensors().empty() && request.what() != "state";
  {
    MutexLock lock(&cores_->mutex);
    const Job* job = cores_->jobs.Find(request.job_id());
    if (whole) {
      ASSIGN_OR_RETURN(job, JobCalled(cores_->jobs, request.job_id()));
    }
    if (job != nullptr) by_id.set_job_id(job->id);  // a name is taken, too
  }
  std::unique_ptr<Fetch> fetch;
  int before = 0;
  bool ends = false;
  {
    MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const uint64_t ticket,
                     line_.Enter(whole ? FetchLine::kExport : FetchLine::kDaemon));
    fetch.reset(new Fetch(this, ticket));
    before = line_.Before(ticket, SteadyNow());
  }
  if (before > 0) waits(before);  // it writes to the caller: not under the lock
  {
    MutexLock lock(&mutex_);
    while (!stopping_ && !cancelled() && line_.Before(fetch->ticket_, SteadyNow()) > 0)
      changed_.WaitUntil(&mutex_, SteadyAfter(kLookAgain));
    ends = stopping_ || cancelled();
    if (!ends) cancels_[fetch->ticket_] = std::move(cancel);
  }
  if (ends) return absl::UnavailableError("the caller has gone, or the coordinator is stopping");
  ASSIGN_OR_RETURN(fetch->reader_, store_->Read(by_id, cancelled, &fetch->step_));
  fetch->Progress();
  return fetch;
}

void Fetches::Tick(absl::Time now) {
  MutexLock lock(&mutex_);
  for (uint64_t ticket : line_.Stalled(now)) {
    auto it = cancels_.find(ticket);
    if (it == cancels_.end()) continue;
    LogWarning("a reader of a checkpoint took nothing for ", absl::FormatDuration(kFetchStall),
               "; its call is ended");
    it->second();
    cancels_.erase(it);
  }
}

}  // namespace isthmus::coordinator
