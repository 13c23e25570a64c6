#include "coordinator/service/checkpoints.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/core/job_names.h"
#include "proto/job/phases.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/local_checkpoints.h"

namespace isthmus::coordinator {

absl::Status Checkpoints::CheckHeader(const PutCheckpointHeader& header) const {
  if (cores_->stopping) return Stopping();
  const Job* job = cores_->jobs.Find(header.job_id());
  if (header.generation() == 0 && header.step() == 0) {
    if (job != nullptr)
      return absl::FailedPreconditionError(
          absl::StrCat("upload: job ", header.job_id(), " is there already"));
    return header.stages() == 1 && header.file() == "weights.safetensors"
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "upload: one stage and its weights.safetensors are expected");
  }
  if (job == nullptr || job->removing || job->status.generation() != header.generation()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint part of job ", header.job_id().substr(0, 80), ", generation ",
                     header.generation(), ": ",
                     job == nullptr || job->removing
                         ? "there is no such job"
                         : absl::StrCat("the job is at generation ", job->status.generation())));
  }
  if (header.stages() != StagesOf(job->plan)) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint part: ", header.stages(),
                                                   " stages; the plan has ", StagesOf(job->plan)));
  }
  if (header.replica() < 0 || header.replica() >= PuttingReplicas(job->plan)) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint part: replica ", header.replica(),
                                                   "; of the plan's ", PuttingReplicas(job->plan),
                                                   " put parts"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoints::CheckPlanned(const std::string& node_id,
                                       const std::string& job_id) const {
  MutexLock lock(&cores_->mutex);
  const Job* job = cores_->jobs.Find(job_id);
  if (job != nullptr) {
    for (const RankPlan& rank : job->plan.ranks()) {
      if (rank.node_id() == node_id) return absl::OkStatus();
    }
  }
  return absl::PermissionDeniedError(
      absl::StrCat("node ", node_id, " has no rank in the plan of job ", job_id.substr(0, 80),
                   ": it may neither store nor fetch checkpoints of it"));
}

absl::Status Checkpoints::CheckPart(const std::string& node_id,
                                    const PutCheckpointHeader& header) const {
  RETURN_IF_ERROR(CheckPlanned(node_id, header.job_id()));
  MutexLock lock(&cores_->mutex);
  const Job* job = cores_->jobs.Find(header.job_id());
  if (job == nullptr) return NoJob(header.job_id());  // removed meanwhile
  const Plan& plan = job->plan;
  const auto is = [&](int rank) {
    return rank >= 0 && rank < plan.ranks_size() && plan.ranks(rank).node_id() == node_id;
  };
  for (int r = 0; r < plan.ranks_size(); ++r) {
    const RankPlan& rank = plan.ranks(r);
    const bool its = rank.stage() == header.stage() &&
                     (header.replica() == 0 || rank.replica() == header.replica());
    if (its && (is(r) || is(rank.buddy() - 1))) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("node ", node_id, " holds neither stage ", header.stage(), " of job ",
                   header.job_id().substr(0, 80), " nor copies of it: it may not store its parts"));
}

absl::StatusOr<std::unique_ptr<CheckpointStore::Part>> Checkpoints::BeginPart(
    const PutCheckpointHeader& header) {
  PutCheckpointHeader counted = header;
  {
    MutexLock mine(&mutex_);
    MutexLock lock(&cores_->mutex);
    RETURN_IF_ERROR(CheckHeader(header));
    const Job* job = cores_->jobs.Find(header.job_id());
    counted.set_replicas(job == nullptr ? 1 : PuttingReplicas(job->plan));
    if (static_cast<int>(puts_.size()) >= kMaxPuts)
      return absl::UnavailableError(
          absl::StrCat("the coordinator takes ", kMaxPuts, " checkpoint parts at once: try again"));
    puts_.insert(header.job_id());
  }
  auto part = store_->Begin(counted);
  if (part.ok()) return part;
  NotStored(header, part.status());
  EndPut(header.job_id());
  return part;
}

void Checkpoints::EndPut(const std::string& job_id) {
  MutexLock mine(&mutex_);
  puts_.erase(puts_.find(job_id));
  MutexLock lock(&cores_->mutex);
  const Job* job = cores_->jobs.Find(job_id);
  if (job == nullptr || job->ended()) sweep_[job_id] = SteadyNow() + patience_;
}

// Not where the transfer itself is at fault: the daemon sends it again.
void Checkpoints::NotStored(const PutCheckpointHeader& header, const absl::Status& why) {
  if (absl::IsDataLoss(why) || absl::IsCancelled(why) || absl::IsInvalidArgument(why)) return;
  const std::string part =
      absl::StrCat(header.file(), " of stage ", header.stage(),
                   header.replica() > 0 ? absl::StrCat(" of replica ", header.replica()) : "", " (",
                   FormatBytes(header.file_bytes()), ")");
  MutexLock lock(&cores_->mutex);
  const bool first = cores_->jobs.OnCheckpointFailed(
      header.job_id(), header.generation(), header.step(),
      {header.stage(), header.replica(), part, std::string(why.message())}, SteadyNow());
  if (first)
    LogWarning("job ", header.job_id(), ", checkpoint ", header.step(), ", ", part, ": ",
               why.message());
  cores_->changed.SignalAll();
}

absl::StatusOr<bool> Checkpoints::FinishPart(const PutCheckpointHeader& header,
                                             CheckpointStore::Part* part,
                                             const absl::Status& taken) {
  // The job may have gone on without it since it began.
  absl::Status current = taken;
  if (current.ok()) {
    MutexLock lock(&cores_->mutex);
    current = CheckHeader(header);
  }
  const absl::StatusOr<bool> complete = current.ok() ? part->Finish() : current;
  if (!complete.ok()) NotStored(header, complete.status());
  EndPut(header.job_id());
  if (!complete.ok() || !*complete) return complete;
  int keep = 0;
  const std::vector<int64_t> steps = store_->Steps(header.job_id());
  std::vector<int64_t> needed;
  {
    MutexLock lock(&cores_->mutex);
    const Job* job = cores_->jobs.Find(header.job_id());
    if (job != nullptr && job->status.generation() == header.generation()) {
      keep = job->spec.checkpoint().keep();
      const size_t others = steps.size() - std::min<size_t>(steps.size(), std::max(1, keep));
      const int64_t oldest = steps.empty() ? header.step() : steps[others];
      needed = PhaseEndsNeeded(job->spec, std::min(oldest, header.step()), header.step());
      // What an interruption brought pushes none out that fell due by the interval.
      int due = 0;
      for (auto s = steps.rbegin(); s != steps.rend() && due < keep; ++s) {
        if (*s > header.step() || !CheckpointAfter(job->plan, *s - 1)) continue;
        needed.push_back(*s);
        ++due;
      }
      cores_->jobs.OnCheckpoint(header.job_id(), header.step(), SteadyNow());
    }
    cores_->changed.SignalAll();
  }
  if (!part->made_whole()) return complete;  // it was: a part of it came again
  LogInfo("job ", header.job_id(), ": checkpoint of step ", header.step(), " is whole");
  if (keep > 0) store_->Trim(header.job_id(), keep, needed);
  return complete;
}

absl::StatusOr<ListCheckpointsReply> Checkpoints::List(const ListCheckpointsRequest& request,
                                                       const Cancelled& cancelled) {
  std::string id = request.job();
  CheckpointStore::Run run;
  JobSpec spec;
  ListCheckpointsReply reply;
  {
    MutexLock lock(&cores_->mutex);
    ASSIGN_OR_RETURN(const Job* job, JobCalled(cores_->jobs, request.job()));
    if (job != nullptr) {
      id = job->id;
      spec = job->spec;
      run = {job->plan.generation(), job->plan.start_step()};
      // Local ones of a job that runs come and go with its steps.
      const bool passing = job->active() && LocalEvery(job->plan) > 0;
      const auto kept = passing ? std::vector<int64_t>() : cores_->jobs.KeptSteps(*job);
      for (auto step = kept.rbegin(); step != kept.rend(); ++step) {
        CheckpointInfo& info = *reply.add_checkpoints();
        info.set_step(*step);
        for (std::string& name : cores_->jobs.KeptOn(*job, *step))
          info.add_kept_by(std::move(name));
      }
    }
    if (job == nullptr && store_->Steps(id).empty()) return NoJob(id);
  }
  ASSIGN_OR_RETURN(auto list, store_->List(id, run, request.verify(), cancelled));
  for (CheckpointInfo& info : list) *reply.add_checkpoints() = std::move(info);
  for (CheckpointInfo& info : *reply.mutable_checkpoints()) {
    info.set_phase(PhaseOfCheckpoint(spec, info.step()));
    info.set_phase_end(!spec.phases().empty() && info.step() == PhaseEnd(spec, info.phase()));
  }
  return reply;
}

// The files go first: a full disk, on which the database takes nothing, is why users remove jobs.
absl::StatusOr<RemoveJobReply> Checkpoints::RemoveJob(const RemoveJobRequest& request,
                                                      Recorder* recorder) {
  RemoveJobReply reply;
  bool known = false;
  {
    MutexLock lock(&cores_->mutex);
    ASSIGN_OR_RETURN(const Job* job, JobCalled(cores_->jobs, request.job()));
    known = job != nullptr;
    reply.set_job_id(known ? job->id : request.job());
    if (known) RETURN_IF_ERROR(cores_->jobs.BeginRemove(reply.job_id()));
  }
  const bool files = !request.keep_checkpoints() && store_->Jobs().count(reply.job_id()) > 0;
  if (!known && !files) return NoJob(request.job());
  // Without files the database is all there is of it: nothing has changed where it refuses.
  const absl::Status gone =
      files ? store_->SetAside(reply.job_id()) : recorder->Forget(reply.job_id());
  {
    MutexLock lock(&cores_->mutex);
    cores_->jobs.EndRemove(reply.job_id(), gone.ok());
    if (!known && gone.ok()) cores_->jobs.SetRemoved(reply.job_id());
  }
  RETURN_IF_ERROR(gone);
  absl::StatusOr<int64_t> freed = 0;
  if (files) {
    freed = store_->Empty(reply.job_id());
    const absl::Status stored = recorder->Sync();
    if (stored.ok()) store_->Forget(reply.job_id());
    if (!stored.ok())
      LogWarning("job ", reply.job_id(),
                 " is removed; the database learns it later: ", stored.message());
  }
  RETURN_IF_ERROR(freed.status());
  reply.set_freed_bytes(*freed);
  LogInfo("job ", reply.job_id(), " is removed",
          request.keep_checkpoints() ? "; its checkpoints stay" : "");
  return reply;
}

void Checkpoints::DropUpload(const std::string& job_id) {
  {
    MutexLock lock(&cores_->mutex);
    if (cores_->jobs.Find(job_id) != nullptr) return;
  }
  if (store_->Steps(job_id) != std::vector<int64_t>{0}) return;
  const absl::StatusOr<int64_t> freed = store_->RemoveJob(job_id);
  LogInfo("job ", job_id, " did not start; what was uploaded for it ",
          freed.ok() ? "is removed" : freed.status().message());
}

void Checkpoints::Sweep(const StoreBatch& stored) {
  std::vector<std::pair<std::string, uint64_t>> due;
  {
    MutexLock mine(&mutex_);
    MutexLock lock(&cores_->mutex);
    const absl::Time now = SteadyNow();
    for (const StoredJob& job : stored.jobs) {
      const Job* current = cores_->jobs.Find(job.id);
      if (current != nullptr && current->ended()) sweep_[job.id] = now + patience_;
      if (job.plan.has_value()) sweep_[job.id] = now;
    }
    for (auto it = sweep_.begin(); it != sweep_.end();) {
      const Job* job = cores_->jobs.Find(it->first);
      const bool busy =  // its sessions may still run
          puts_.count(it->first) > 0 || (job != nullptr && job->status.out_of_touch());
      if (it->second <= now && busy) it->second = now + patience_;
      if (it->second > now) {
        ++it;
        continue;
      }
      due.emplace_back(it->first, job != nullptr && !job->ended() ? job->status.generation() : 0);
      it = sweep_.erase(it);
    }
  }
  for (const auto& [id, generation] : due) store_->DropPartials(id, generation);
  for (const std::string& id : stored.forgotten) store_->Forget(id);
  for (const std::string& id : stored.made_room) {
    const absl::StatusOr<int64_t> freed = store_->RemoveJob(id);
    LogInfo("job ", id, " made room for newer ones; its checkpoints ",
            freed.ok() ? absl::StrCat("went with it, ", FormatBytes(*freed)) : "stay: ",
            freed.ok() ? "" : freed.status().message());
  }
}

void Checkpoints::LogOrphans() {
  for (const std::string& id : store_->Jobs()) {
    MutexLock lock(&cores_->mutex);
    if (cores_->jobs.Find(id) != nullptr) continue;
    LogInfo("checkpoints/", id,
            " belongs to no job in the database. If it is of no use: isthmus rm ", id);
  }
}

}  // namespace isthmus::coordinator
