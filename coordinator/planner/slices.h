// What replicas that train subnetworks (strategy.subnetworks; proto/plan/deal.h) hold and exchange.
// A slice is as large as its replica's slowest daemon is fast beside others', and no larger than
// its memory. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_SLICES_H_
#define ISTHMUS_COORDINATOR_PLANNER_SLICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/layout.h"
#include "proto/job.pb.h"
#include "proto/model/model_cost.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// What a replica whose slice is this share of the units and heads holds at most: whole ones.
SliceShare SliceFor(const JobSpec& job, int replica, double share);
// What it holds where these are the shares of all.
SliceShare SliceIn(const JobSpec& job, int replica, const std::vector<double>& shares);
// Of a rank of a plan; everything where there are no subnetworks.
SliceShare SliceOfRank(const Plan& plan, const RankPlan& rank);

// The shares of the replicas, with this cut of the layers. ResourceExhausted: together they have no
// memory for the model.
absl::StatusOr<std::vector<double>> ShareSlices(
    const JobSpec& job, const std::vector<std::vector<const NodeInfo*>>& nodes,
    const std::vector<int>& layers);

// Bytes that a rank holds while slices change hands, of `dealt` weights of its stage in all.
int64_t ExchangeBytes(int64_t dealt, const SliceShare& slice);

// At how many of the ends of rounds the model comes together, as a share: for checkpoints and
// validations that are due by an interval.
double MergedRounds(const JobSpec& job);

// The mode in words: who holds how much, what a round of a priced layout costs.
std::string SubnetworkWords(const JobSpec& job, const Layout& layout);

// Plan.deal and the replicas' slices.
void WriteDeal(const std::vector<double>& shares, Plan* plan);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_SLICES_H_
