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

// That, and on a GPU the two parts of what both ends of a chain exchange: a GPU's streams do not
// use each other's memory, so it is no memory of the passes. Larger groups, and those whose codec
// is by matrix, reduce on the host.
struct TiedBytes {
  int64_t stage = 0;  // where the stage computes
  int64_t host = 0;   // of a GPU's host
  bool exchange = false;
};
// At an end of a chain of several stages, one of `replicas`, on `node`.
TiedBytes TiedBytesAt(const JobSpec& job, int replicas, const NodeInfo& node);

// Sets the pairs, the codecs (compression.gradients and compression.tied) and the seconds of a
// layout whose chains are priced. With local steps an agreement's seconds count in parts, one for
// each of the steps. Unavailable: two ranks of a group have no usable link.
absl::Status PriceReductions(const JobSpec& job, const LinkIndex& links, Layout* layout);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_REDUCTION_COST_H_
