// `isthmus plan JOB --topology LINKS`: a plan of hosts that need not be there yet. Thread: one
// owner.
#ifndef ISTHMUS_COORDINATOR_CLI_OFFLINE_OFFLINE_PLAN_H_
#define ISTHMUS_COORDINATOR_CLI_OFFLINE_OFFLINE_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cli/offline/topology_file.h"
#include "coordinator/cli/view/console.h"
#include "coordinator/planner/planner_input.h"
#include "coordinator/planner/what_if.h"
#include "proto/control.pb.h"

namespace isthmus::cli {

struct OfflineOptions {
  std::string links;            // preset or file; empty: a plan of the coordinator's daemons
  std::string hosts;            // file; empty: all hosts are alike
  int nodes = 0;                // the first ones of the table; 0: all that it names
  double gflops = 100;          // of a host that the file does not name
  std::string memory = "8GiB";  // likewise
};

struct OfflinePlan {
  PlanReply reply;
  double bytes_a_day = 0;  // that all links carry together, training alone
  std::vector<coordinator::WhatIf> what_ifs;
};

// Hosts and links as isthmus-wan shows them. InvalidArgument names the flag, the value and what it
// may be.
absl::StatusOr<Topology> ReadTopology(const PlanRequest& request, const OfflineOptions& options);

// Of a job with phases: the first.
coordinator::PlannerInput InputOn(const JobSpec& job, Topology topology);

// The planner's errors.
absl::StatusOr<OfflinePlan> PlanOn(const JobSpec& job, Topology topology);

// What follows the plan: bytes a day, the critical resource, what each change would buy.
std::string OfflineView(const OfflinePlan& plan);
// PlanReply's fields, `bytes_a_day` and `what_if`: a list of {change, step_s}, the largest gain
// first.
std::string OfflineJson(const OfflinePlan& plan);

// Asks isthmus-wan for the table and prints the plan. `more`: said of it besides, or empty. Returns
// the exit code.
int RunOfflinePlan(const PlanRequest& request, const std::string& more,
                   const OfflineOptions& options, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_OFFLINE_OFFLINE_PLAN_H_
