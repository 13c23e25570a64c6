#include "coordinator/planner/genetic_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"

namespace isthmus::coordinator {
namespace {

constexpr double kBetter = 1 - 1e-9;  // a cost below this share of another one is better
constexpr uint64_t kStream = 0x67656e65;

// Bits of a tensor by a codec of the job; `bits` an element where the job says auto, or a codec
// whose size another one's makes.
double BitsOf(const std::string& text, const TensorDims& dims, int bits) {
  const absl::StatusOr<CodecSpec> codec = ParseCodec(text);
  return codec.ok() && codec->kind() != CodecSpec::KEPT ? 8 * WireBytes(*codec, dims, true)
                                                        : bits * 1.0 * dims.elements();
}

class Genetic {
 public:
  Genetic(int nodes, int placed, const std::function<double(const Order&)>& cost, uint64_t seed)
      : nodes_(nodes), placed_(placed), cost_(cost), seed_(seed) {}

  GeneticResult Run() {
    Order order(nodes_);
    std::iota(order.begin(), order.end(), 0);
    for (int i = 0; i < kPopulation; ++i) {
      Add(order);
      Shuffle(&order);
    }
    for (int i = 0; i < kOffspring && evaluated_ < kMostEvaluations && nodes_ > 1; ++i) {
      const Order &one = Parent(), &other = Parent();
      Order child = Cross(one, other);
      if (Below(2) == 0) {
        const int placed = Below(placed_);  // in this order, whatever the compiler
        std::swap(child[placed], child[Below(nodes_)]);
      }
      Add(std::move(child));
    }
    GeneticResult result;
    for (auto& one : population_) result.orders.push_back(std::move(one.second));
    result.evaluated = evaluated_;
    return result;
  }

 private:
  int Below(int n) { return static_cast<int>(RandomBelow(seed_, kStream, next_++, n)); }

  void Shuffle(Order* order) {
    for (int i = nodes_ - 1; i > 0; --i) std::swap((*order)[i], (*order)[Below(i + 1)]);
  }

  double Cost(const Order& order) {
    ++evaluated_;
    return cost_(order);
  }

  // The better one of two.
  const Order& Parent() {
    const int some = static_cast<int>(population_.size());
    return population_[std::min(Below(some), Below(some))].second;
  }

  // A part of the one where it is there, and the others in the order of the other one.
  Order Cross(const Order& one, const Order& other) {
    int first = Below(nodes_), end = Below(nodes_);
    if (end < first) std::swap(first, end);
    std::vector<bool> taken(nodes_);
    for (int i = first; i <= end; ++i) taken[one[i]] = true;
    Order child;
    auto from = other.begin();
    for (int i = 0; i < nodes_; ++i) {
      if (i >= first && i <= end) {
        child.push_back(one[i]);
        continue;
      }
      while (taken[*from]) ++from;
      child.push_back(*from++);
    }
    return child;
  }

  // Swaps of two, one of which may be idle, while any pays.
  double Improve(Order* order) {
    double cost = Cost(*order);
    for (bool better = true; better;) {
      better = false;
      for (int i = 0; i < placed_; ++i) {
        for (int j = i + 1; j < nodes_ && evaluated_ < kMostEvaluations; ++j) {
          std::swap((*order)[i], (*order)[j]);
          const double other = Cost(*order);
          if (other < cost * kBetter) {
            cost = other;
            better = true;
          } else {
            std::swap((*order)[i], (*order)[j]);
          }
        }
      }
    }
    return cost;
  }

  void Add(Order order) {
    const double cost = Improve(&order);
    std::pair<double, Order> entry(cost, std::move(order));
    const auto at = std::lower_bound(population_.begin(), population_.end(), entry);
    if (at != population_.end() && at->second == entry.second) return;
    population_.insert(at, std::move(entry));
    if (population_.size() > kPopulation) population_.pop_back();
  }

  const int nodes_, placed_;
  const std::function<double(const Order&)>& cost_;
  const uint64_t seed_;
  uint64_t next_ = 0;
  int64_t evaluated_ = 0;
  std::vector<std::pair<double, Order>> population_;  // the best first
};

}  // namespace

CommunicationCost::CommunicationCost(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                                     const LinkIndex& links, int replicas, int stages)
    : nodes_(static_cast<int>(nodes.size())), replicas_(replicas), stages_(stages) {
  const CompressionSpec& codecs = job.compression();
  const TensorDims passed{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
  const double pipeline =
      (BitsOf(codecs.forward(), passed, 8) + BitsOf(codecs.backward(), passed, 8)) / 2;
  const double embedding =
      IsTied(job.model()) ? 1.0 * job.model().vocabulary() * job.model().hidden() : 0;
  const double held = (static_cast<double>(ParameterCount(job.model())) - embedding) / stages;
  const TensorDims gradients{1, static_cast<int>(std::max(1.0, held / job.model().hidden())),
                             job.model().hidden()};
  const double reduced = BitsOf(codecs.gradients(), gradients, 16) / replicas /
                         static_cast<double>(std::max<int64_t>(1, job.strategy().local_steps()));
  pairs_.resize(static_cast<size_t>(nodes_) * nodes_);
  for (int i = 0; i < nodes_; ++i) {
    for (int j = 0; j < nodes_; ++j) {
      if (i == j || !links.Both(nodes[i]->id(), nodes[j]->id())) continue;
      const LinkIndex::Link &to = links.Get(nodes[i]->id(), nodes[j]->id()),
                            &from = links.Get(nodes[j]->id(), nodes[i]->id());
      const double rate = std::min(to.rate_bits_per_s, from.rate_bits_per_s);
      const double latency_s = (to.round_trip_s + from.round_trip_s) / 4;
      pairs_[i * nodes_ + j] = {2 * (latency_s + pipeline / rate),
                                2 * (latency_s + reduced / rate)};
    }
  }
}

double CommunicationCost::Of(const Order& order) const {
  double gradients = 0, pipeline = 0;
  const auto node = [&](int stage, int replica) { return order[stage * replicas_ + replica]; };
  for (int s = 0; s < stages_; ++s) {
    double boundary = 0;
    for (int r = 0; r < replicas_; ++r) {
      double rank = 0;
      for (int other = 0; other < replicas_; ++other)
        if (other != r) rank += At(node(s, r), node(s, other)).gradients_s;
      gradients = std::max(gradients, rank);
      if (s > 0) boundary = std::max(boundary, At(node(s - 1, r), node(s, r)).pipeline_s);
    }
    pipeline += boundary;
  }
  return gradients + pipeline;
}

GeneticResult SearchGenetically(int nodes, int placed,
                                const std::function<double(const Order&)>& cost, uint64_t seed) {
  return Genetic(nodes, placed, cost, seed).Run();
}

}  // namespace isthmus::coordinator
