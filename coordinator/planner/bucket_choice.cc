#include "coordinator/planner/bucket_choice.h"

#include <algorithm>

#include "proto/plan/groups.h"
#include "proto/plan/parts.h"

namespace isthmus::coordinator {
namespace {

// Of a bucket beside its bytes: headers, and threads that wake each other.
constexpr double kBucketSeconds = 1e-3;
// Of the step time: what a prediction can't tell from nothing.
constexpr double kMustGain = 0.005;

// From the end of the backward pass until all contributions are there.
double ExposedSeconds(const BucketQuestion& q, const std::vector<Bucket>& buckets) {
  const auto layers = static_cast<double>(q.layers.size());
  const auto rows = static_cast<double>(buckets.front().rows.end);
  double sent_s = 0;
  for (const Bucket& bucket : buckets) {
    const double ready_s = q.backward_s * (1 - bucket.first_layer / layers);
    sent_s = std::max(sent_s, ready_s) + kBucketSeconds +
             q.contribution_s * static_cast<double>(bucket.rows.count()) / rows;
  }
  return sent_s - q.backward_s;
}

}  // namespace

BucketAnswer ChooseBuckets(const BucketQuestion& q) {
  BucketAnswer best;
  const int64_t width = q.by_matrix ? 1 : kGradientRow;
  const double whole_s = ExposedSeconds(q, CutBuckets(q.layers, 1, width));
  double least_s = whole_s - kMustGain * q.step_s;
  for (int wanted = 2; wanted <= std::min<int>(kMostBuckets, q.layers.size()); ++wanted) {
    const std::vector<Bucket> cut = CutBuckets(q.layers, wanted, width);
    const double exposed_s = ExposedSeconds(q, cut);
    if (static_cast<int>(cut.size()) != wanted || exposed_s >= least_s) continue;
    least_s = exposed_s;
    best = {wanted, whole_s - exposed_s};
  }
  return best;
}

}  // namespace isthmus::coordinator
