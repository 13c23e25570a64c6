// The half of Coordinator that moves checkpoints: parts in, answers out.
#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/service/coordinator.h"

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
    } else if (header.stages() != job->plan.ranks_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint part: ", header.stages(), " stages; the plan has ", job->plan.ranks_size()));
    }
    if (puts_ >= kMaxPuts)
      return absl::UnavailableError(
          absl::StrCat("the coordinator takes ", kMaxPuts, " checkpoint parts at once: try again"));
    ++puts_;
    put_jobs_.insert(header.job_id());
  }
  auto part = checkpoints_->Begin(header);
  if (!part.ok()) NotStored(header, part.status());
  MutexLock lock(&mutex_);
  if (!part.ok()) EndPut(header.job_id());
  return part;
}

void Coordinator::EndPut(const std::string& job_id) {
  --puts_;
  put_jobs_.erase(put_jobs_.find(job_id));
  const Job* job = jobs_.Find(job_id);
  if (job != nullptr && job->ended()) sweep_[job_id] = Now() + options_.parts_patience;
}

// Not where the transfer itself is at fault: the daemon sends it again.
void Coordinator::NotStored(const PutCheckpointHeader& header, const absl::Status& why) {
  if (absl::IsDataLoss(why) || absl::IsCancelled(why) || absl::IsInvalidArgument(why)) return;
  MutexLock lock(&mutex_);
  const bool first = jobs_.OnCheckpointFailed(header.job_id(), header.generation(), header.step(),
                                              header.stage(), std::string(why.message()), Now());
  if (first)
    LogWarning("job ", header.job_id(), ", checkpoint ", header.step(), ": ", why.message());
  changed_.SignalAll();
}

absl::StatusOr<bool> Coordinator::FinishPart(const PutCheckpointHeader& header,
                                             CheckpointStore::Part* part,
                                             const absl::Status& taken) {
  absl::StatusOr<bool> complete = false;
  if (taken.ok()) {
    complete = part->Finish();
  } else {
    complete = taken;
  }
  if (!complete.ok()) NotStored(header, complete.status());
  int keep = 0;
  {
    MutexLock lock(&mutex_);
    EndPut(header.job_id());
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

// ---- what there is, and what goes ----

absl::StatusOr<ListCheckpointsReply> Coordinator::Checkpoints(const ListCheckpointsRequest& request,
                                                              const Cancelled& cancelled) {
  std::string id = request.job();
  CheckpointStore::Run run;
  {
    MutexLock lock(&mutex_);
    const Job* job = jobs_.Find(request.job());
    if (job != nullptr) {
      id = job->id;
      run = {job->plan.generation(), job->plan.start_step()};
    }
    if (job == nullptr && checkpoints_->Steps(id).empty()) return NoJob(id);
  }
  ASSIGN_OR_RETURN(auto list, checkpoints_->List(id, run, request.verify(), cancelled));
  ListCheckpointsReply reply;
  for (CheckpointInfo& info : list) *reply.add_checkpoints() = std::move(info);
  return reply;
}

absl::StatusOr<RemoveJobReply> Coordinator::RemoveJob(const RemoveJobRequest& request) {
  RemoveJobReply reply;
  bool known = false;
  const bool orphan = checkpoints_->Jobs().count(request.job()) > 0;
  {
    MutexLock lock(&mutex_);
    const Job* job = jobs_.Find(request.job());
    known = job != nullptr;
    reply.set_job_id(known ? job->id : request.job());
    if (!known && (!orphan || request.keep_checkpoints())) return NoJob(request.job());
    if (!request.keep_checkpoints()) RETURN_IF_ERROR(checkpoints_->NotRead(reply.job_id()));
    // Its checkpoints go below, where their bytes are counted.
    keep_checkpoints_.insert(reply.job_id());
    const absl::Status removed = known ? jobs_.Remove(reply.job_id()) : absl::OkStatus();
    if (!known) jobs_.SetRemoved(reply.job_id());
    if (!removed.ok()) keep_checkpoints_.erase(reply.job_id());
    RETURN_IF_ERROR(removed);
  }
  RETURN_IF_ERROR(WaitForFlush());
  if (!request.keep_checkpoints()) {
    ASSIGN_OR_RETURN(const int64_t freed, checkpoints_->RemoveJob(reply.job_id()));
    reply.set_freed_bytes(freed);
  }
  LogInfo("job ", reply.job_id(), " is removed",
          request.keep_checkpoints() ? "; its checkpoints stay" : "");
  return reply;
}

void Coordinator::DropUpload(const std::string& job_id) {
  {
    MutexLock lock(&mutex_);
    if (jobs_.Find(job_id) != nullptr) return;
  }
  if (checkpoints_->Steps(job_id) != std::vector<int64_t>{0}) return;
  const absl::StatusOr<int64_t> freed = checkpoints_->RemoveJob(job_id);
  LogInfo("job ", job_id, " did not start; what was uploaded for it ",
          freed.ok() ? "is removed" : freed.status().message());
}

void Coordinator::SweepCheckpoints(const std::vector<std::string>& forgotten) {
  std::vector<std::pair<std::string, uint64_t>> due;
  std::vector<std::string> gone;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = Now();
    for (auto it = sweep_.begin(); it != sweep_.end();) {
      if (it->second > now) {
        ++it;
        continue;
      }
      const Job* job = jobs_.Find(it->first);
      if (put_jobs_.count(it->first) > 0 || (job != nullptr && job->status.out_of_touch())) {
        it->second = now + options_.parts_patience;  // its sessions may still run
        ++it;
        continue;
      }
      due.emplace_back(it->first, job != nullptr && !job->ended() ? job->status.generation() : 0);
      it = sweep_.erase(it);
    }
    for (const std::string& id : forgotten) {
      if (keep_checkpoints_.erase(id) == 0) gone.push_back(id);
    }
  }
  for (const auto& [id, generation] : due) checkpoints_->DropPartials(id, generation);
  for (const std::string& id : gone) {
    const absl::StatusOr<int64_t> freed = checkpoints_->RemoveJob(id);
    LogInfo("job ", id, " made room for newer ones; its checkpoints ",
            freed.ok() ? absl::StrCat("went with it, ", FormatBytes(*freed)) : "stay: ",
            freed.ok() ? "" : freed.status().message());
  }
}

// Of jobs that the database does not know: nobody asks for them, and nobody but the user knows
// whether they are of use.
void Coordinator::LogOrphans() {
  for (const std::string& id : checkpoints_->Jobs()) {
    if (jobs_.Find(id) != nullptr) continue;
    LogInfo("checkpoints/", id,
            " belongs to no job in the database. If it is of no use: isthmus rm ", id);
  }
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

bool Coordinator::HasParts(const FetchCheckpointRequest& request) {
  const std::string file =
      request.what() == "state" ? "state.json" : request.what() + ".safetensors";
  return std::any_of(request.have().begin(), request.have().end(), [&](const LocalPart& part) {
    return part.file() == file && checkpoints_->Has(request.job_id(), request.step(), part);
  });
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
      changed_.WaitUntil(&mutex_, SteadyAfter(kLookAgain));
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
