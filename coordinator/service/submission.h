// Plans jobs, starts them, stops them, and starts those that wait for daemons. Owns the thread that
// tries these; all else is in the cores. A job's plan goes out only after its generation and state
// are on disk. Thread: any. Bounds: kMaxJobBytes, PlannerPatience, a few plans where daemons are
// taken meanwhile.
#ifndef ISTHMUS_COORDINATOR_SERVICE_SUBMISSION_H_
#define ISTHMUS_COORDINATOR_SERVICE_SUBMISSION_H_

#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/checkpoints.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/daemons.h"
#include "coordinator/service/follower.h"
#include "coordinator/service/phase_weights.h"
#include "coordinator/service/planner_view.h"
#include "coordinator/service/recorder.h"
#include "coordinator/service/resume.h"
#include "coordinator/store/store.h"

namespace isthmus::coordinator {

struct SubmissionParts {  // outlive it
  Cores* cores = nullptr;
  Daemons* daemons = nullptr;
  Store* store = nullptr;
  Recorder* recorder = nullptr;
  CheckpointStore* files = nullptr;
  Checkpoints* checkpoints = nullptr;
  PhaseWeights* phases = nullptr;
};

// What a job may be planned of: on the daemons that are free now, and as if no other job ran.
struct PlannerViews {
  PlannerInput free, all;
};

class Submission {
 public:
  Submission(const SubmissionParts& parts, const PlannerPatience& patience,
             absl::Duration try_pending)
      : p_(parts),
        cores_(parts.cores),
        patience_(patience),
        try_pending_(try_pending),
        resumer_(parts.cores, parts.files, patience.daemons),
        follower_(parts.cores, parts.daemons) {}
  void Start();  // the thread of jobs that wait
  void Join();   // once Cores::stopping

  absl::StatusOr<PlanReply> MakePlan(const PlanRequest& request, const Cancelled& cancelled);
  // Of a new job, once links and data are known. Nothing is planned.
  absl::StatusOr<PlannerViews> ViewsOf(const JobSpec& job, const Cancelled& cancelled);
  absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request, const Cancelled& cancelled);
  absl::StatusOr<std::string> NewJobId(const std::string& name);
  absl::StatusOr<JobStatus> Stop(const std::string& job, bool at_once);

 private:
  PlannerInput Snapshot(const StartRequest& request, bool with_busy)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  PlannerViews Views(const StartRequest& request, const Cancelled& cancelled);
  absl::StatusOr<SubmitReply> StartOrQueue(const SubmitRequest& request,
                                           const Cancelled& cancelled);
  // The id of the job that a resume is about: of that name, else what was asked for.
  absl::StatusOr<std::string> JobToResume(const std::string& name, const std::string& asked);
  absl::StatusOr<StartRequest> Prepare(const SubmitRequest& request, const Cancelled& cancelled);
  // Unavailable: it begins a phase, and the weights for it are being made.
  absl::Status HasWeights(const StartRequest& start);
  // A later phase than that of `in`, with today's daemons. Errors name the phase.
  static absl::StatusOr<PlannedJob> PlanLater(const StartRequest& request, const PlannerInput& in,
                                              int phase);
  // What each phase of the job from that of `in` on will be, in words, in front of those of `plan`.
  absl::Status AddPhaseWords(const StartRequest& request, const PlannerInput& in, Plan* plan);
  // The job may start now; a new one is added.
  absl::Status Admit(const StartRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  absl::Status StillFree(const Plan& plan) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  // `planned_of`, if not null: what it was planned of.
  absl::StatusOr<PlannedJob> PlanAndStart(const StartRequest& request,
                                          PlannerInput* planned_of = nullptr);
  absl::Status SendPlan(const std::string& job_id, StartRequest::Kind kind, uint64_t generation,
                        Commands commands);
  void Loop();
  // A pass over the jobs that wait. There is one at a time: after `patience` none is made.
  void TryWaiting(absl::Duration patience) ABSL_LOCKS_EXCLUDED(cores_->mutex);
  void TryPending(const std::string& job_id);

  const SubmissionParts p_;
  Cores* const cores_;
  const PlannerPatience patience_;
  const absl::Duration try_pending_;
  bool trying_ ABSL_GUARDED_BY(cores_->mutex) = false;  // a pass over the jobs that wait is made
  Resumer resumer_;
  Follower follower_;  // the thread's
  std::thread thread_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_SUBMISSION_H_
