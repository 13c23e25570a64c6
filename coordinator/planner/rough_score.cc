#include "coordinator/planner/rough_score.h"

#include <algorithm>
#include <limits>
#include <string>

#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"

namespace isthmus::coordinator {
namespace {

constexpr int kRoughBits = 8;           // what `auto` may come down to without harm
constexpr int kRoughGradientBits = 16;  // of an element that replicas exchange

// Of the whole job, by the first daemon that has its data.
double RoughFirstVisits(const JobSpec& job, const std::vector<const NodeInfo*>& nodes) {
  for (const NodeInfo* node : nodes) {
    const absl::StatusOr<DataSize> data = CountSamples(job, *node);
    if (data.ok() && data->known) return FirstVisits(job, *data, {});
  }
  return 1;
}

}  // namespace

RoughScore::RoughScore(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                       const LinkIndex& links)
    : micros_(Micros(job)), nodes_(static_cast<int>(nodes.size())) {
  const TensorDims dims{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
  const double bits = [&] {
    const std::string& text = job.compression().forward();
    if (text == "auto") return 1.0 * kRoughBits * dims.elements();
    auto spec = ParseCodec(text);
    return spec.ok() ? 8 * MeanWireBytes(*spec, dims, RoughFirstVisits(job, nodes))
                     : 32.0 * dims.elements();
  }();
  const double embedding = 1.0 * job.model().vocabulary() * job.model().hidden();
  tied_ = IsTied(job.model());
  if (tied_) tied_bits_ = (job.compression().tied() == "auto" ? 16.0 : 32.0) * embedding;
  model_bits_ = kRoughGradientBits *
                (static_cast<double>(ParameterCount(job.model())) - (tied_ ? embedding : 0));
  for (int i = 0; i < nodes_; ++i) {
    whole_s_.push_back(StageTime(job, *nodes[i], 0, job.model().layers()).sum());
    const bool has_data = CountSamples(job, *nodes[i]).ok();
    has_data_.push_back(has_data);
    int alike = 0;
    while (has_data && alike < i &&
           (!has_data_[alike] || !SameData(job, *nodes[alike], *nodes[i]).ok()))
      ++alike;
    data_.push_back(has_data ? alike : i);
    for (int j = 0; j < nodes_; ++j) {
      Pair pair;
      if (i != j && links.Both(nodes[i]->id(), nodes[j]->id())) {
        const LinkIndex::Link &up = links.Get(nodes[i]->id(), nodes[j]->id()),
                              &down = links.Get(nodes[j]->id(), nodes[i]->id());
        const double rate = std::min(up.rate_bits_per_s, down.rate_bits_per_s);
        pair = {true,
                bits / rate,
                32.0 * dims.elements() / rate,
                tied_bits_ / rate,
                (up.round_trip_s + down.round_trip_s) / 2,
                rate};
      }
      pairs_.push_back(pair);
    }
  }
}

double RoughScore::Of(const Order& order) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (!has_data_[order.front()] || !has_data_[order.back()] ||
      !same_data(order.front(), order.back()))
    return kNever;
  double speed = 0, bottleneck = 0, latency = 0, mild = 0;
  for (size_t s = 0; s < order.size(); ++s) {
    speed += 1 / whole_s_[order[s]];
    if (s == 0) continue;
    const Pair& pair = At(order[s - 1], order[s]);
    if (!pair.usable) return kNever;
    bottleneck = std::max(bottleneck, pair.busy_s);
    latency += pair.round_trip_s;
    mild += pair.full_s;
  }
  double tied = 0;
  if (order.size() > 1 && tied_) {
    const Pair& ends = At(order.front(), order.back());
    if (!ends.usable) return kNever;
    tied = ends.tied_s + ends.round_trip_s;
  }
  return micros_ * std::max(1 / speed, bottleneck) + latency * 2 + tied + 1e-3 * mild;
}

// Both phases of the sharded groups: the slowest pair, or the daemon whose line carries most.
double RoughScore::Reduce(const Chains& chains, const std::vector<double>& cut,
                          int* impossible) const {
  const size_t stages = cut.size();
  const auto replicas = static_cast<double>(chains.size());
  std::vector<double> through(nodes_), line(nodes_);  // of each daemon: bits of a phase, bit/s
  double slowest_s = 0, latency_s = 0;
  const auto join = [&](int a, int b, double bits) {
    const Pair& pair = At(a, b);
    if (!pair.usable) {
      ++*impossible;
      return;
    }
    slowest_s = std::max(slowest_s, bits / pair.rate);
    latency_s = std::max(latency_s, pair.round_trip_s);
    for (int node : {a, b}) {
      through[node] += bits;
      line[node] = std::max(line[node], pair.rate);
    }
  };
  std::vector<int> ends;
  for (const Order& chain : chains) {
    if (stages > 1 && tied_) ends.insert(ends.end(), {chain.front(), chain.back()});
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      join(ends[i], ends[j], tied_bits_ / static_cast<double>(ends.size()));
  }
  for (size_t s = 0; s < stages; ++s) {
    const double bits = cut[s] * model_bits_ + (stages == 1 ? tied_bits_ : 0);
    for (size_t i = 0; i < chains.size(); ++i) {
      for (size_t j = 0; j < i; ++j) join(chains[i][s], chains[j][s], bits / replicas);
    }
  }
  for (int node = 0; node < nodes_; ++node) {
    if (line[node] > 0) slowest_s = std::max(slowest_s, through[node] / line[node]);
  }
  return 2 * slowest_s + latency_s;
}

double RoughScore::Of(const Chains& chains) const {
  const size_t stages = chains[0].size();
  int impossible = 0;
  std::vector<double> cut(stages);  // the share of the model on each stage, by its daemons' speed
  double speed = 0;
  for (size_t s = 0; s < stages; ++s) {
    for (const Order& chain : chains) cut[s] += 1 / whole_s_[chain[s]];
    speed += cut[s];
  }
  for (double& share : cut) share /= speed;
  double throughput = 0, latency = 0, mild = 0;
  for (const Order& chain : chains) {
    for (int end : {chain.front(), chain.back()})
      impossible += !has_data_[end] || !same_data(chains[0].front(), end);
    double bottleneck = 0, own_latency = 0;
    for (size_t s = 0; s < stages; ++s) {
      bottleneck = std::max(bottleneck, cut[s] * whole_s_[chain[s]]);
      if (s == 0) continue;
      const Pair& pair = At(chain[s - 1], chain[s]);
      impossible += !pair.usable;
      bottleneck = std::max(bottleneck, pair.busy_s);
      own_latency += pair.round_trip_s;
      mild += pair.full_s;
    }
    throughput += 1 / bottleneck;
    latency = std::max(latency, own_latency);
  }
  const double reduce = Reduce(chains, cut, &impossible);
  return impossible * kImpossible + micros_ / throughput + 2 * latency + reduce + 1e-3 * mild;
}

}  // namespace isthmus::coordinator
