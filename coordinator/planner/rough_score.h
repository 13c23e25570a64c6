// A rough score of ways to place a job, by which the search throws away most of them: the
// bottleneck of compute and links at kRoughBits, then latency, then how mild a codec the links
// allow. Daemons are indices into one list. Thread: a value.
#ifndef ISTHMUS_COORDINATOR_PLANNER_ROUGH_SCORE_H_
#define ISTHMUS_COORDINATOR_PLANNER_ROUGH_SCORE_H_

#include <vector>

#include "coordinator/planner/cost_model.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

using Order = std::vector<int>;     // the daemons of a chain, by stage
using Chains = std::vector<Order>;  // by replica

class RoughScore {
 public:
  RoughScore(const JobSpec& job, const std::vector<const NodeInfo*>& nodes, const LinkIndex& links);

  int nodes() const { return nodes_; }
  double whole_s(int node) const { return whole_s_[node]; }  // the whole model, one micro-batch
  bool has_data(int node) const { return has_data_[node]; }
  bool same_data(int i, int j) const { return data_[i] == data_[j]; }
  bool usable(int i, int j) const { return At(i, j).usable; }
  double step_s(int i, int j) const { return At(i, j).busy_s + At(i, j).round_trip_s; }

  // Seconds of a step, about. Infinity: not possible.
  double Of(const Order& order) const;
  // The same of several replicas with one cut, and their reductions. Each thing that makes it
  // impossible (a link, data) adds kImpossible, so that a search can see how near it is.
  double Of(const Chains& chains) const;
  static constexpr double kImpossible = 1e12;

 private:
  struct Pair {
    bool usable = false;
    double busy_s = 0, full_s = 0, tied_s = 0, round_trip_s = 0, rate = 0;
  };
  const Pair& At(int i, int j) const { return pairs_[i * nodes_ + j]; }
  double Reduce(const Chains& chains, const std::vector<double>& cut, int* impossible) const;

  const int micros_;
  const int nodes_;
  bool tied_ = true;
  double model_bits_ = 0, tied_bits_ = 0;  // of gradients, as they would travel
  std::vector<double> whole_s_;
  std::vector<bool> has_data_;
  std::vector<int> data_;  // the first daemon that has the same
  std::vector<Pair> pairs_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_ROUGH_SCORE_H_
