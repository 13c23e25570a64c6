// Groups that cover a part of their set of tensors (GroupPlan.part of GroupPlan.parts): buckets, in
// which the gradients of a stage are reduced while its last backward pass still computes the layers
// below; fragments, in which replicas with local steps agree on the weights
// (proto/plan/agreements.h); and rows of a tied embedding that two ranks exchange. Thread:
// pure functions.
#ifndef ISTHMUS_PROTO_PLAN_PARTS_H_
#define ISTHMUS_PROTO_PLAN_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/model/stage_shapes.h"
#include "proto/plan.pb.h"
#include "proto/plan/groups.h"

namespace isthmus {

// A set of these layers cut into buckets, the last layers first: of equal numbers of layers, and of
// whole rows of `width` elements, so that a row is coded as it would be without buckets. Fewer
// than `buckets` where there are not so many layers, or not so many rows.
struct Bucket {
  Rows rows;            // of the set
  int first_layer = 0;  // from there on its gradients are complete
};
std::vector<Bucket> CutBuckets(const LayerTensors& layers, int buckets, int64_t width);

// Are these groups parts of one set of the same ranks?
bool SameSet(const GroupPlan& a, const GroupPlan& b);

// The first element of a bucket in its set: the parts before it in the set have larger numbers.
int64_t FirstElement(const Plan& plan, const GroupPlan& group);

// Buckets of the gradients of this rank's stage; 1: they are reduced as a whole, or not at all.
int GradientParts(const Plan& plan, int rank);

// Where the backward pass of a rank's stage is cut: of each bucket but the last one, from the last
// layers on, the layer that its first element belongs to. `layers`: of its own parameters.
std::vector<int> BucketLayers(const LayerTensors& layers, const Plan& plan, int rank);

// A bucket that is offered while the last backward pass computes the layers below it: each but the
// last one, where steps do not overlap.
bool IsOfferedEarly(const Plan& plan, const GroupPlan& group);

// What all parts of a set are called together: "stage 0" of "stage 0 part 1".
std::string SetName(const GroupPlan& group);

// InvalidArgument: not one of its parts, a bucket that lacks the others, or a fragment that the job
// does not have.
absl::Status CheckParts(const Plan& plan, const GroupPlan& group);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_PARTS_H_
