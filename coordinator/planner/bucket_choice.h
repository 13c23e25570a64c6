// Into how many buckets the gradients of a stage are cut (proto/plan/parts.h): contributions of the
// last layers travel while the last backward pass still computes the layers below.
// Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_BUCKET_CHOICE_H_
#define ISTHMUS_COORDINATOR_PLANNER_BUCKET_CHOICE_H_

#include "proto/model/stage_shapes.h"

namespace isthmus::coordinator {

constexpr int kMostBuckets = 16;

struct BucketQuestion {
  LayerTensors layers;        // of the stage
  bool by_matrix = false;     // of the codec
  double contribution_s = 0;  // all contributions on the slowest link
  double backward_s = 0;      // of the last micro-batch, on the fastest replica
  double step_s = 0;          // a gain that can't be seen in it is none
};

struct BucketAnswer {
  int buckets = 1;
  double hidden_s = 0;  // of contribution_s, what passes before the backward pass ends
};

// Pieces of the pass are as long as their share of the layers; each bucket costs a little beside
// its bytes. The fewest buckets of those that hide most.
BucketAnswer ChooseBuckets(const BucketQuestion& q);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_BUCKET_CHOICE_H_
