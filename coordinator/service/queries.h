// Answers about jobs and daemons. Owns nothing. Thread: any. Bounds of a reply are named in
// queries.cc.
#ifndef ISTHMUS_COORDINATOR_SERVICE_QUERIES_H_
#define ISTHMUS_COORDINATOR_SERVICE_QUERIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/daemons.h"

namespace isthmus::coordinator {

class Queries {
 public:
  Queries(Cores* cores, const Daemons* daemons) : cores_(cores), daemons_(daemons) {}

  absl::StatusOr<JobStatus> Status(const std::string& job, bool with_plan);
  ListJobsReply List();
  ListNodesReply Nodes();
  std::string ServiceDiscovery(const std::string& own_address);  // Prometheus' HTTP one

 private:
  NodeStatus Describe(const Member& member, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);

  Cores* const cores_;
  const Daemons* const daemons_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_QUERIES_H_
