#include "coordinator/service/gauges.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/clock.h"
#include "proto/job/job_state.h"

#ifndef ISTHMUS_VERSION
#define ISTHMUS_VERSION "unknown"
#endif

namespace isthmus::coordinator {

void Gauges::Update() {
  MutexLock mine(&mutex_);
  MutexLock lock(&cores_->mutex);
  const absl::Time now = SteadyNow();
  SetNodes(now);
  SetJobs(now);
  Set("isthmus_build_info", "Version of this program.",
      {{"version", ISTHMUS_VERSION}, {"device", "none"}}, 1);
  Set("isthmus_insecure",
      "1: the coordinator listens off loopback without certificates (--insecure): who reaches its "
      "port can command it.",
      {}, insecure_);
  for (const auto& [name, labels] : out_) {
    if (set_.count({name, labels}) == 0) GaugeRemove(name, labels);
  }
  out_.swap(set_);
  set_.clear();
}

void Gauges::Set(const char* name, const char* help, const MetricLabels& labels, double value) {
  GaugeSet(name, help, labels, value);
  set_.insert({name, labels});
}

void Gauges::SetNodes(absl::Time now) {
  const auto has_left = [](const Member& m) { return m.leaving && !m.connected(); };
  int alive = 0, left = 0, drained = 0;
  for (const auto& [id, m] : cores_->members.members()) {
    alive += m.alive();
    left += has_left(m);
    drained += m.alive() && m.drained;
  }
  for (const auto& [id, label] : cores_->members.Labels()) {
    const Member& m = *cores_->members.Find(id);
    if (has_left(m)) continue;
    Set("isthmus_node_up",
        "1: the daemon is connected and its lease holds; 0: it is lost. One that was told to end, "
        "and did, has no such series.",
        {{"node", label}}, m.alive());
    Set("isthmus_node_heartbeat_age_seconds", "Time since the last heartbeat of a daemon.",
        {{"node", label}}, absl::ToDoubleSeconds(now - m.last_heartbeat));
  }
  Set("isthmus_lease_seconds", "A daemon silent for so long is lost.", {},
      absl::ToDoubleSeconds(cores_->members.options().lease));
  Set("isthmus_nodes", "Daemons by state.", {{"state", "alive"}}, alive);
  Set("isthmus_nodes", "Daemons by state.", {{"state", "left"}}, left);
  Set("isthmus_nodes_drained", "Daemons that are there and get no job (isthmus drain).", {},
      drained);
  Set("isthmus_nodes", "Daemons by state.", {{"state", "lost"}},
      static_cast<double>(cores_->members.members().size()) - alive - left);
}

void Gauges::SetJobs(absl::Time now) {
  std::map<JobState, int> states;
  int newest = 0;
  for (const Job* job : cores_->jobs.All()) {
    ++states[job->status.state()];
    if (!job->active() && newest >= kGaugedJobs) continue;
    ++newest;
    const JobStatus s = cores_->jobs.Status(*job, now);
    const MetricLabels label = {{"job", job->id}};
    Set("isthmus_job_step", "Committed steps of a job.", label, static_cast<double>(s.step()));
    Set("isthmus_job_generation", "Number of the job's current plan.", label,
        static_cast<double>(s.generation()));
    if (s.phases() > 0)
      Set("isthmus_job_phase", "Phase of a job with phases that runs, or ran last; 1: the first.",
          label, s.phase() + 1);
    Set("isthmus_job_recoveries", "How often a job went on by itself after an interruption.", label,
        s.recoveries());
    Set("isthmus_job_moves", "How often a job took another plan because its links had changed.",
        label, s.moves());
    Set("isthmus_job_checkpoint_step", "Step of the newest whole checkpoint; -1: none.", label,
        static_cast<double>(s.checkpoint_step()));
    const std::vector<int64_t> kept = cores_->jobs.KeptSteps(*job);
    Set("isthmus_job_kept_step",
        "Step that a job goes on from if it is interrupted and its daemons come back: of a "
        "checkpoint that is stored, or whole on their own disks; -1: none.",
        label, static_cast<double>(std::max(s.checkpoint_step(), kept.empty() ? -1 : kept.back())));
    Set("isthmus_job_failed_checkpoints",
        "Checkpoints that could not be stored since the newest whole one.", label,
        job->active() ? static_cast<double>(s.failed_checkpoints()) : 0);
    // A daemon's own goes with its session, and the last pass of a session is its last act.
    if (s.has_validation_loss())
      Set("isthmus_job_validation_loss", "Loss of the last validation pass, in nats a token.",
          label, s.validation_loss());
    if (s.has_validation_accuracy())
      Set("isthmus_job_validation_accuracy",
          "Share of the samples of the last validation pass whose class a classifier said.", label,
          s.validation_accuracy());
    if (cores_->jobs.WantsAttention(*job, now)) {
      Set("isthmus_job_held",
          "1 for a paused or failed job that nobody has resumed, replaced or removed, or one that "
          "waits for long to go on by itself.",
          {{"job", job->id}, {"state", StateName(s.state())}}, 1);
    }
    if (!job->active() || !HasLoss(s)) continue;
    Set("isthmus_job_loss", "Training loss of the last step, in nats a token.", label, s.loss());
    Set("isthmus_job_tokens_per_second", "Training rate over the last steps.", label,
        s.tokens_per_s());
  }
  for (int state = JobState_MIN; state <= JobState_MAX; ++state) {
    Set("isthmus_jobs", "Jobs by state.", {{"state", StateName(static_cast<JobState>(state))}},
        states[static_cast<JobState>(state)]);
  }
}

}  // namespace isthmus::coordinator
