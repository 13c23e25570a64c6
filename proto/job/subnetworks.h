// Jobs whose replicas train independent subnetworks (proto/plan/deal.h): what such a job may say.
// Thread: pure functions.
#ifndef ISTHMUS_PROTO_JOB_SUBNETWORKS_H_
#define ISTHMUS_PROTO_JOB_SUBNETWORKS_H_

#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace isthmus {

// strategy.subnetworks.
inline constexpr char kNoSubnetworks[] = "none", kUnits[] = "units", kBlocks[] = "blocks";

inline bool TrainsSubnetworks(const JobSpec& job) { return job.strategy().subnetworks() == kUnits; }

// Every error of their fields, as JobErrors gives them.
std::vector<absl::Status> SubnetworkErrors(const JobSpec& job);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_JOB_SUBNETWORKS_H_
