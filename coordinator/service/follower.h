// Looks at the plans of running jobs whose links have changed, and lets those take a new one that
// it pays for (planner/follow.h, core/job_follow.cc). Owns nothing. Thread: one; the planner runs
// without the cores' mutex.
#ifndef ISTHMUS_COORDINATOR_SERVICE_FOLLOWER_H_
#define ISTHMUS_COORDINATOR_SERVICE_FOLLOWER_H_

#include "coordinator/planner/follow.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/daemons.h"

namespace isthmus::coordinator {

class Follower {
 public:
  Follower(Cores* cores, Daemons* daemons) : cores_(cores), daemons_(daemons) {}

  void Look();

 private:
  FollowInput InputOf(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void Decide(const FollowInput& input);

  Cores* const cores_;
  Daemons* const daemons_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_FOLLOWER_H_
