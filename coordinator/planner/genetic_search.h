// A search as that of DT-FM (Yuan et al., "Decentralized Training of Foundation Models in
// Heterogeneous Environments", 2022), for comparison with the planner's own: a genetic search over
// the partition of daemons into stages and the order of these, for the least communication. What
// daemons compute, how layers are cut and what a step takes in the end is not looked at.
// Deterministic. Thread: pure functions and values.
#ifndef ISTHMUS_COORDINATOR_PLANNER_GENETIC_SEARCH_H_
#define ISTHMUS_COORDINATOR_PLANNER_GENETIC_SEARCH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/rough_score.h"
#include "proto/job.pb.h"

namespace isthmus::coordinator {

// DT-FM's cost of an order of daemons. Those at the places s x replicas to (s + 1) x replicas - 1
// hold stage s, each for another replica; later ones are idle. It is the sum of
//   data parallel: of the stage whose gradients take longest, the rank that takes longest, with all
//     others of its stage: 2 x (latency + bits / replicas / rate) each
//   pipeline: the way along the stages (an open tour), of the replica that takes longest at each
//     boundary: 2 x (latency + bits / rate), with the bits of one micro-batch
// Bits are those of the job's codecs, 8 and 16 an element where it says auto.
class CommunicationCost {
 public:
  static constexpr double kImpossible = 1e9;  // added for each link that is not usable

  CommunicationCost(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                    const LinkIndex& links, int replicas, int stages);

  double Of(const Order& order) const;  // seconds; `order` has at least replicas x stages daemons

 private:
  struct Pair {
    double pipeline_s = kImpossible, gradients_s = kImpossible;
  };
  const Pair& At(int i, int j) const { return pairs_[i * nodes_ + j]; }

  const int nodes_, replicas_, stages_;
  std::vector<Pair> pairs_;
};

constexpr int kPopulation = 32;
constexpr int kOffspring = 400;
constexpr int64_t kMostEvaluations = 200000;  // of the cost, in one search

struct GeneticResult {
  std::vector<Order> orders;  // the last population, the best first
  int64_t evaluated = 0;
};

// Orders of `nodes` daemons of which the first `placed` count. Begins with random ones and the
// given order; an offspring is a crossover of two by order, at times with a swap, improved by swaps
// while these pay.
GeneticResult SearchGenetically(int nodes, int placed,
                                const std::function<double(const Order&)>& cost, uint64_t seed);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_GENETIC_SEARCH_H_
