// Prices a placement: chooses the codecs of `auto`, predicts the seconds of a step, finds room for
// buffers. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_PRICING_H_
#define ISTHMUS_COORDINATOR_PLANNER_PRICING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/codec_search.h"
#include "coordinator/planner/placement.h"

namespace isthmus::coordinator {

// What a chain is where several train beside each other.
struct ReplicaShare {
  int samples = 0;   // of the batch, that it takes; 0: all
  int replicas = 1;  // that agree on the weights: each needs memory for that
  SliceShare slice;  // of subnetworks, that it trains
};

// The cut of the layers on a chain, one of `replicas`, that computes fastest, with room at its ends
// for what they keep of the tied embedding's gradient, if there is. ResourceExhausted: the daemons
// do not hold the model.
absl::StatusOr<std::vector<int>> CutLayers(const JobSpec& job, int replicas,
                                           const std::vector<const NodeInfo*>& nodes,
                                           const SliceShare& slice = {});

// `layers` empty: balanced. `effort`: how hard the codecs of `auto` are looked for. Errors say what
// is missing: memory, disk, a link, data.
absl::StatusOr<Placement> PricePlacement(const JobSpec& job,
                                         const std::vector<const NodeInfo*>& nodes,
                                         const std::vector<int>& layers, const LinkIndex& links,
                                         const Remaining& remaining = {},
                                         Effort effort = Effort::kThorough,
                                         const ReplicaShare& share = {});

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_PRICING_H_
