// What the groups of a layout with several replicas cost: the gradients of each stage, summed over
// its replicas, and the tied embedding's, over all that hold a copy of it; both sharded
// (proto/plan/groups.h). Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_REDUCTION_COST_H_
#define ISTHMUS_COORDINATOR_PLANNER_REDUCTION_COST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/planner/layout.h"

namespace isthmus::coordinator {

// Bytes on one rank that reduces `elements` with the ranks of `replicas` replicas: its own, what
// the others send, the sums; with error feedback (and where `auto` chooses) the residuals of both;
// with local steps the weights agreed on, the outer momentum and what was agreed.
int64_t ReductionBytes(const JobSpec& job, int64_t elements, int replicas);

// Bytes that the codec of compression.tied keeps on each rank with a copy of the tied embedding;
// where `auto` chooses, that it may keep.
int64_t TiedResidualBytes(const JobSpec& job);

// Sets the pairs, the codecs (compression.gradients and compression.tied) and the seconds of a
// layout whose chains are priced. With local steps an agreement's seconds count in parts, one for
// each of the steps. Unavailable: two ranks of a group have no usable link.
absl::Status PriceReductions(const JobSpec& job, const LinkIndex& links, Layout* layout);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_REDUCTION_COST_H_
