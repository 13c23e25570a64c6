#include "coordinator/service/follower.h"

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "coordinator/service/planner_view.h"
#include "proto/job/phases.h"

namespace isthmus::coordinator {

FollowInput Follower::InputOf(const Job& job) {
  FollowInput input;
  PlannerInput& in = input.planner;
  in.job_id = job.id;
  in.phase = job.plan.phase();
  in.phase_start = job.plan.phase_start();
  in.phases = {job.spec.phases().begin(), job.spec.phases().end()};
  in.job = PhaseJob(job.spec, in.phase);
  in.start_step = job.status.step();
  in.from_checkpoint = in.follows = true;
  AddTopology(cores_, false, &in);
  input.step_s = RecentStepSeconds(job);
  input.start_s = absl::ToDoubleSeconds(job.start_took);
  input.move_s = absl::ToDoubleSeconds(job.move_took);
  return input;
}

void Follower::Look() {
  std::vector<FollowInput> inputs;
  {
    MutexLock lock(&cores_->mutex);
    const absl::Time now = SteadyNow();
    for (const Job* job : cores_->jobs.All()) {
      if (cores_->jobs.MayMove(*job, now)) inputs.push_back(InputOf(*job));
    }
  }
  for (const FollowInput& input : inputs) Decide(input);
}

void Follower::Decide(const FollowInput& input) {
  const FollowDecision decision = DecideFollow(input);
  MutexLock lock(&cores_->mutex);
  const std::string& id = input.planner.job_id;
  const Job* job = cores_->jobs.Find(id);
  const absl::Time now = SteadyNow();
  // Else it is looked at again, if there is still a reason.
  if (job == nullptr || job->status.generation() != input.planner.previous.generation() ||
      !cores_->jobs.MayMove(*job, now))
    return;
  daemons_->Send(cores_, cores_->jobs.Followed(id, decision.words, decision.moves, now));
  LogInfo("job ", id, ": ", job->status.following());
  cores_->changed.SignalAll();
}

}  // namespace isthmus::coordinator
