// The names in a job. Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_JOB_NAMES_H_
#define ISTHMUS_PROTO_JOB_JOB_NAMES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace isthmus {

// `name` of a job: commands take it, and file names begin with it.
absl::Status CheckJobName(const std::string& name);

// strategy.nodes: names of daemons, none twice.
std::vector<absl::Status> NodeNameErrors(const StrategySpec& strategy);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_JOB_NAMES_H_
