// A job laid out over daemons: a chain of stages for each replica (placement.h), all with one cut,
// what each takes of a batch, and how the replicas agree on the weights: at the end of each step,
// or of strategy.local_steps of them.
//
// Shares go by speed: micro-batches are dealt one by one to the replica that would end first. What
// replicas exchange is priced by the slowest pair of a group and by what one daemon sends and gets
// in all: its links are thought to share one line, as fast as the fastest of them.
// Thread: values and pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_LAYOUT_H_
#define ISTHMUS_COORDINATOR_PLANNER_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/codec_search.h"
#include "coordinator/planner/placement.h"

namespace isthmus::coordinator {

// Two ranks that share a group. The rank of stage s of replica r is r x stages + s.
struct GroupPair {
  int lower = 0, upper = 0;
  LinkIndex::Link up, down;
};

struct Layout {
  std::vector<Placement> chains;  // by replica; at least one
  std::vector<int> samples;       // of a batch, by replica
  std::vector<double> slices;     // of subnetworks, by replica: shares that are 1 together
  std::vector<GroupPair> pairs;   // with several replicas
  CodecSpec tied;
  std::string tied_why;  // of `auto`
  CodecSpec gradients;   // with several replicas: what they send, and the sums that come back
  std::string gradients_why, shares_why, local_why;
  std::vector<int> buckets;  // of each stage's gradients, with several replicas (bucket_choice.h)
  std::string buckets_why;
  double pipeline_s = 0;  // of the replica that ends last
  double sync_s = 0;      // everything between the last backward pass and the optimiser
  double reduce_s = 0;    // of sync_s: what the groups exchange
  double warmup_s = 0;    // quantized_adam: a step of the warm-up takes so much longer
  double agree_s = 0;     // with local steps: one agreement, of which sync_s has its share ...
  double longest_agree_s =
      0;                   // ... and the longest: of all at once, where the model comes together
  double optimizer_s = 0;  // of the slowest
  double step_s = 0;       // predicted, mean of the run
  double first_step_s = 0;
  double again_step_s = 0;
  double loss = 0, price = 0;  // of the codecs: the worst replica's
  double cost_s = 0;           // layouts are compared by it

  int replicas() const { return static_cast<int>(chains.size()); }
  int stages() const { return static_cast<int>(chains.front().nodes.size()); }
  const Placement& chain() const { return chains.front(); }
  std::vector<const NodeInfo*> nodes() const;  // by rank
};

using NodeChains = std::vector<std::vector<const NodeInfo*>>;  // by replica, by stage
NodeChains ChainsOf(const Layout& layout);

// The job with one replica's share of the batch.
JobSpec ReplicaJob(const JobSpec& job, int samples);

// `layers` empty: balanced for the speeds of each stage's daemons together. `samples` empty: dealt
// by speed; so are `slices`. Errors as PricePlacement's, and of a link that a group lacks.
absl::StatusOr<Layout> PriceLayout(const JobSpec& job, const NodeChains& nodes,
                                   const std::vector<int>& layers, const LinkIndex& links,
                                   const Remaining& remaining = {},
                                   Effort effort = Effort::kThorough,
                                   const std::vector<int>& samples = {},
                                   const std::vector<double>& slices = {});

// Samples of a batch for each replica, from what one micro-batch takes there and what comes on top
// of them. Every replica has at least one: `batch` is no smaller than their number.
std::vector<int> DealSamples(int batch, int micro_batch, const std::vector<double>& micro_s,
                             const std::vector<double>& extra_s);

// "a, b" of one replica, "a, b | c, d" of two.
std::string NamesOf(const Layout& layout);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_LAYOUT_H_
