#include "coordinator/service/recorder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/job/job_state.h"

namespace isthmus::coordinator {
namespace {

constexpr int kLogLine = 500;

std::string StateWords(const Job& job) {
  return absl::StrCat(StateName(job.status.state()), job.status.reason().empty() ? "" : ": ",
                      job.status.reason());
}

// A database that is new, or was damaged, beside checkpoints that are not: whoever lost it should
// learn that before other jobs run. What only an upload left is no such sign.
void WarnOfUnknown(const StoreContents& contents, CheckpointStore* checkpoints) {
  std::set<std::string> known(contents.removed.begin(), contents.removed.end());
  for (const StoredJob& job : contents.jobs) known.insert(job.id);
  std::vector<std::string> unknown;
  for (const std::string& id : checkpoints->Jobs()) {
    const std::vector<int64_t> steps = checkpoints->Steps(id);
    if (known.count(id) == 0 && !steps.empty() && steps.back() > 0) unknown.push_back(id);
  }
  if (unknown.empty()) return;
  LogWarning("checkpoints/ holds those of ", NamesOf(unknown), ", which coordinator.db has not: ",
             contents.jobs.empty() && contents.removed.empty()
                 ? "it is new, or was lost or damaged"
                 : "it is older than they are, or was damaged",
             ". To have the jobs back, stop the coordinator and restore coordinator.db from a "
             "backup (deploy/README.md, Backup) before other jobs run; without one, `isthmus "
             "export ID DIR` still gives their models");
}

}  // namespace

absl::Status Recorder::Load(CheckpointStore* checkpoints) {
  ASSIGN_OR_RETURN(StoreContents contents, store_->Load());
  const absl::Time now = SteadyNow();
  MutexLock lock(&cores_->mutex);
  std::set<std::pair<std::string, uint64_t>> live;
  int active = 0;
  const std::set<std::string> removed = checkpoints->SetAsideBefore();
  for (const std::string& id : removed) cores_->jobs.SetRemoved(id);
  for (StoredJob& stored : contents.jobs) {
    if (removed.count(stored.id) > 0) continue;
    Job job;
    job.id = stored.id;
    job.number = stored.number;
    job.spec = std::move(stored.spec);
    job.wait_for_nodes = stored.wait_for_nodes;
    job.status = std::move(stored.status);
    job.boundaries.assign(job.status.boundaries().begin(), job.status.boundaries().end());
    job.status.clear_boundaries();
    job.step_asked = stored.step_asked;
    job.accepts_changes = stored.accepts_changes;
    job.failed_checkpoint = stored.failed_checkpoint;
    job.because = std::move(stored.because);
    if (stored.plan.has_value()) job.plan = *std::move(stored.plan);
    const uint64_t since = job.status.generation() + (job.step_asked ? 1 : 0);
    const int64_t head = checkpoints->Head(job.id, since, job.status.checkpoint_step());
    // The plan and the state are one batch, so they agree; a job that was active has its plan.
    if (!job.active()) logged_[job.id] = StateWords(job);
    active += job.active();
    if (job.active() || job.status.out_of_touch()) live.insert({job.id, job.status.generation()});
    cores_->jobs.Restore(
        std::move(job), head,
        std::max(stored.next_record_step, stored.plan.has_value() ? stored.plan->start_step() : 0),
        now);
  }
  WarnOfUnknown(contents, checkpoints);
  cores_->jobs.RestoreRemoved(contents.removed);
  checkpoints->DropPartials(live);
  for (const NodeInfo& node : contents.nodes) {
    cores_->members.Restore(node, contents.drained.count(node.id()) > 0, now);
    if (const auto left = contents.left.find(node.id()); left != contents.left.end())
      cores_->members.OnLeaving(node.id(), left->second);
    cores_->compute.Restore(node);
  }
  cores_->compute.Forget(cores_->members);
  for (const LinkMeasurement& link : contents.links) cores_->links.Restore(link, now);
  cores_->links.Forget(cores_->members);
  if (!contents.jobs.empty()) {
    LogInfo("the state directory has ", contents.jobs.size(),
            contents.jobs.size() == 1 ? " job, " : " jobs, ", active,
            active == 1 ? " of them was running; " : " of them were running; ",
            contents.nodes.size(), contents.nodes.size() == 1 ? " daemon known" : " daemons known");
  }
  return absl::OkStatus();
}

void Recorder::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Recorder::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Recorder::Loop() {
  for (bool stop = false; !stop;) {
    uint64_t wanted = 0;
    {
      MutexLock lock(&mutex_);
      const auto at = SteadyAfter(every_);
      while (!stopping_ && (trouble_ || wanted_ == done_) && changed_.WaitUntil(&mutex_, at)) {
      }
      stop = stopping_;
      wanted = wanted_;
    }
    if (!Flush()) continue;
    MutexLock lock(&mutex_);
    done_ = wanted;
    changed_.SignalAll();
  }
}

absl::Status Recorder::Write() {
  RETURN_IF_ERROR(store_->Write(unwritten_));
  stored_(std::exchange(unwritten_, StoreBatch()));
  return absl::OkStatus();
}

// First what the disk refused before.
bool Recorder::Flush() {
  absl::Status written = unwritten_.empty() ? absl::OkStatus() : Write();
  if (written.ok()) {
    {
      MutexLock lock(&cores_->mutex);
      unwritten_ = Collect();
      LogStates();
    }
    written = Write();
  }
  if (!written.ok() && !trouble_)
    LogError("what changed can't be stored and is kept in memory: ", written.message());
  if (written.ok() && trouble_) LogInfo("the state database takes writes again");
  trouble_ = !written.ok();
  return written.ok();
}

absl::Status Recorder::Sync() {
  MutexLock lock(&mutex_);
  const uint64_t mine = ++wanted_;
  changed_.SignalAll();
  const auto until = SteadyAfter(kDiskPatience);
  while (done_ < mine) {
    if (stopping_) return Stopping();
    if (!changed_.WaitUntil(&mutex_, until))
      return absl::UnavailableError(
          "the state database did not take the job in time (see the coordinator's log)");
  }
  return absl::OkStatus();
}

absl::Status Recorder::Forget(const std::string& id) {
  RETURN_IF_ERROR(Sync());  // what is written of the job later would bring it back
  StoreBatch batch;
  batch.forgotten.push_back(id);
  return store_->Write(batch);
}

StoreBatch Recorder::Collect() {
  StoreBatch batch;
  const absl::Time now = SteadyNow();
  JobTable::Dirty dirty = cores_->jobs.TakeDirty();
  for (const std::string& id : dirty.changed) {
    const Job* job = cores_->jobs.Find(id);
    if (job == nullptr) continue;
    StoredJob stored;
    stored.id = id;
    stored.number = job->number;
    stored.wait_for_nodes = job->wait_for_nodes;
    stored.step_asked = job->step_asked;
    stored.accepts_changes = job->accepts_changes;
    stored.spec = job->spec;
    stored.status = cores_->jobs.Status(*job, now);
    stored.failed_checkpoint = job->failed_checkpoint;
    stored.because = job->because;
    if (dirty.new_plan.count(id) > 0) stored.plan = job->plan;
    batch.jobs.push_back(std::move(stored));
  }
  batch.forgotten.assign(dirty.forgotten.begin(), dirty.forgotten.end());
  batch.made_room = std::move(dirty.made_room);
  batch.truncated = std::move(dirty.truncated);
  batch.records = cores_->jobs.TakeRecords();
  batch.nodes = cores_->members.TakeChanged();
  for (const NodeInfo& node : batch.nodes) {
    const Member* member = cores_->members.Find(node.id());
    if (member != nullptr && member->drained) batch.drained.insert(node.id());
    if (member != nullptr && member->leaving) batch.left[node.id()] = member->why_leaving;
  }
  batch.links = cores_->links.TakeChanged();
  return batch;
}

void Recorder::LogStates() {
  for (const Job* job : cores_->jobs.All()) {
    std::string words = StateWords(*job);
    std::string& logged = logged_[job->id];
    if (WithoutAges(logged) == WithoutAges(words)) continue;
    const bool bad = job->status.state() == JOB_PAUSED || job->status.state() == JOB_FAILED;
    LogMessage(bad ? LogLevel::kWarning : LogLevel::kInfo,
               absl::StrCat("job ", job->id, ", generation ", job->status.generation(), ", step ",
                            job->status.step(), ": ", words.substr(0, kLogLine)));
    logged = std::move(words);
  }
  for (auto it = logged_.begin(); it != logged_.end();)
    it = cores_->jobs.Find(it->first) == nullptr ? logged_.erase(it) : std::next(it);
}

}  // namespace isthmus::coordinator
