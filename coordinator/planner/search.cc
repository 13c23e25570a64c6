#include "coordinator/planner/search.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/planner_resume.h"
#include "coordinator/planner/pricing.h"
#include "proto/codec/codec_text.h"

namespace isthmus::coordinator {
namespace {

constexpr int kGreedyStarts = 8;
constexpr int kNamedPairs = 5;  // in the words of a refusal
constexpr int kRoughBits = 8;   // what `auto` may come down to without harm, for the rough score

using Order = std::vector<int>;

// Of the whole job, by the first daemon that has its data.
double RoughFirstVisits(const JobSpec& job, const std::vector<const NodeInfo*>& nodes) {
  for (const NodeInfo* node : nodes) {
    const absl::StatusOr<DataSize> data = CountSamples(job, *node);
    if (data.ok() && data->known) return FirstVisits(job, *data, {});
  }
  return 1;
}

// Scores orders roughly: the bottleneck of compute and links at kRoughBits, then latency, then how
// mild a codec the links allow.
class Rough {
 public:
  Rough(const JobSpec& job, const std::vector<const NodeInfo*>& nodes, const LinkIndex& links)
      : micros_(Micros(job)), nodes_(nodes.size()) {
    const TensorDims dims{job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
    const double bits = [&] {
      const std::string& text = job.compression().forward();
      if (text == "auto") return 1.0 * kRoughBits * dims.elements();
      auto spec = ParseCodec(text);
      return spec.ok() ? 8 * MeanWireBytes(*spec, dims, RoughFirstVisits(job, nodes))
                       : 32.0 * dims.elements();
    }();
    const double tied_bits = (job.compression().tied() == "auto" ? 16.0 : 32.0) *
                             job.model().vocabulary() * job.model().hidden();
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
          pair = {true, bits / rate, 32.0 * dims.elements() / rate, tied_bits / rate,
                  (up.round_trip_s + down.round_trip_s) / 2};
        }
        pairs_.push_back(pair);
      }
    }
  }

  double whole_s(int node) const { return whole_s_[node]; }
  bool has_data(int node) const { return has_data_[node]; }
  bool same_data(int i, int j) const { return data_[i] == data_[j]; }
  bool usable(int i, int j) const { return At(i, j).usable; }
  double step_s(int i, int j) const { return At(i, j).busy_s + At(i, j).round_trip_s; }

  double Score(const Order& order) const {  // infinity: not possible
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
    if (order.size() > 1) {
      const Pair& ends = At(order.front(), order.back());
      if (!ends.usable) return kNever;
      tied = ends.tied_s + ends.round_trip_s;
    }
    return micros_ * std::max(1 / speed, bottleneck) + latency * 2 + tied + 1e-3 * mild;
  }

 private:
  struct Pair {
    bool usable = false;
    double busy_s = 0, full_s = 0, tied_s = 0, round_trip_s = 0;
  };
  const Pair& At(int i, int j) const { return pairs_[i * nodes_ + j]; }

  const int micros_;
  const int nodes_;
  std::vector<double> whole_s_;
  std::vector<bool> has_data_;
  std::vector<int> data_;  // the first daemon that has the same
  std::vector<Pair> pairs_;
};

// The best few, by score and then by the order itself.
class Best {
 public:
  void Offer(double score, const Order& order) {
    if (score == std::numeric_limits<double>::infinity()) return;
    const std::pair<double, Order> entry{score, order};
    if (entries_.size() >= kPricedOrders && !(entry < entries_.back())) return;
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), entry);
    if (at != entries_.end() && at->second == order) return;
    entries_.insert(at, entry);
    if (entries_.size() > kPricedOrders) entries_.pop_back();
  }
  std::vector<Order> orders() const {
    std::vector<Order> out;
    for (const auto& e : entries_) out.push_back(e.second);
    return out;
  }

 private:
  std::vector<std::pair<double, Order>> entries_;
};

void AllOrders(const Rough& rough, int nodes, int stages, Order* prefix, std::vector<bool>* used,
               Best* best) {
  if (static_cast<int>(prefix->size()) == stages) {
    best->Offer(rough.Score(*prefix), *prefix);
    return;
  }
  for (int i = 0; i < nodes; ++i) {
    if ((*used)[i] || (!prefix->empty() && !rough.usable(prefix->back(), i))) continue;
    (*used)[i] = true;
    prefix->push_back(i);
    AllOrders(rough, nodes, stages, prefix, used, best);
    prefix->pop_back();
    (*used)[i] = false;
  }
}

// From `start` always the neighbour that costs least: its link and its share of the compute. Then
// swaps that improve the score.
void GreedyOrder(const Rough& rough, int nodes, int stages, int start, Best* best) {
  Order order{start};
  std::vector<bool> used(nodes);
  used[start] = true;
  while (static_cast<int>(order.size()) < stages) {
    const bool last = static_cast<int>(order.size()) + 1 == stages;
    int next = -1;
    double cost = 0;
    for (int i = 0; i < nodes; ++i) {
      if (used[i] || !rough.usable(order.back(), i) ||
          (last && (!rough.has_data(i) || !rough.same_data(start, i) || !rough.usable(start, i))))
        continue;
      const double c = std::max(rough.step_s(order.back(), i), rough.whole_s(i) / stages) +
                       0.1 * rough.step_s(order.back(), i);
      if (next < 0 || c < cost) {
        next = i;
        cost = c;
      }
    }
    if (next < 0) return;
    used[next] = true;
    order.push_back(next);
  }
  double score = rough.Score(order);
  for (bool better = true; better;) {
    better = false;
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t j = i + 1; j < order.size(); ++j) {
        std::swap(order[i], order[j]);
        const double s = rough.Score(order);
        if (s < score * (1 - 1e-9)) {
          score = s;
          better = true;
        } else {
          std::swap(order[i], order[j]);
        }
      }
    }
  }
  best->Offer(score, order);
}

double CountOrders(int nodes, int stages) {
  double n = 1;
  for (int i = 0; i < stages; ++i) n *= nodes - i;
  return n;
}

std::string Names(const Placement& p) {
  return absl::StrJoin(
      p.nodes, ", ", [](std::string* out, const NodeInfo* n) { absl::StrAppend(out, n->name()); });
}

std::string Stages(int n) { return absl::StrCat(n, n == 1 ? " stage" : " stages"); }

absl::Status TooFew(const PlannerInput& input, const std::vector<const NodeInfo*>& nodes,
                    const std::vector<std::string>& unfit, int stages) {
  std::vector<std::string> out = input.absent;
  out.insert(out.end(), unfit.begin(), unfit.end());
  return absl::FailedPreconditionError(absl::StrCat(
      Stages(stages), stages == 1 ? " needs" : " need", " as many daemons; ", nodes.size(),
      nodes.size() == 1 ? " is" : " are", " free",
      nodes.empty() ? ""
                    : absl::StrCat(" (",
                                   absl::StrJoin(nodes, ", ",
                                                 [](std::string* o, const NodeInfo* n) {
                                                   absl::StrAppend(o, n->name());
                                                 }),
                                   ")"),
      out.empty() ? "" : absl::StrCat("; not usable: ", absl::StrJoin(out, "; "))));
}

absl::Status NoLinks(const std::vector<const NodeInfo*>& nodes, int stages,
                     const LinkIndex& links) {
  std::vector<std::string> pairs;
  int more = 0;
  for (const NodeInfo* a : nodes) {
    for (const NodeInfo* b : nodes) {
      if (a == b || links.Get(a->id(), b->id()).usable) continue;
      if (static_cast<int>(pairs.size()) < kNamedPairs) {
        pairs.push_back(
            absl::StrCat(a->name(), " -> ", b->name(), ": ", links.Get(a->id(), b->id()).why_not));
      } else {
        ++more;
      }
    }
  }
  return absl::UnavailableError(absl::StrCat(
      "links: no order of ", stages,
      " daemons has usable links between neighbours and between its ends: ",
      absl::StrJoin(pairs, "; "), more > 0 ? absl::StrCat("; and ", more, " more pairs") : ""));
}

// Why no two of these daemons can be first and last stage, as far as that is for their data. OK: it
// is not.
absl::Status NoEnds(const JobSpec& job, const std::vector<const NodeInfo*>& nodes) {
  std::vector<const NodeInfo*> have;
  absl::Status missing, differ;
  for (const NodeInfo* node : nodes) {
    absl::Status data = CountSamples(job, *node).status();
    if (!data.ok()) {
      if (missing.ok()) missing = std::move(data);
      continue;
    }
    for (const NodeInfo* other : have) {
      absl::Status same = SameData(job, *other, *node);
      if (same.ok()) return absl::OkStatus();
      if (differ.ok()) differ = std::move(same);
    }
    have.push_back(node);
  }
  if (!differ.ok() || have.size() != 1 || missing.ok()) return differ;
  return absl::Status(missing.code(),
                      absl::StrCat("data: the first and the last stage read it, and of the free "
                                   "daemons only ",
                                   have[0]->name(), " has it: ", missing.message()));
}

absl::StatusOr<std::vector<const NodeInfo*>> NamedNodes(const PlannerInput& input) {
  std::vector<const NodeInfo*> nodes;
  const StrategySpec& strategy = input.job.strategy();
  for (const std::string& name : strategy.nodes()) {
    std::vector<const NodeInfo*> hits;
    for (const NodeInfo& n : input.topology.nodes()) {
      if (n.name() == name || n.id() == name) hits.push_back(&n);
    }
    if (hits.empty()) {
      std::vector<std::string> there;
      for (const NodeInfo& n : input.topology.nodes()) there.push_back(n.name());
      return absl::FailedPreconditionError(absl::StrCat(
          "strategy.nodes names '", name,
          "', which is not free; free are: ", there.empty() ? "none" : absl::StrJoin(there, ", "),
          input.absent.empty()
              ? ""
              : absl::StrCat("; not usable: ", absl::StrJoin(input.absent, "; "))));
    }
    if (hits.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "strategy.nodes: ", hits.size(), " daemons are called '", name,
          "'; name them by identity: ",
          absl::StrJoin(hits, ", ",
                        [](std::string* o, const NodeInfo* n) { absl::StrAppend(o, n->id()); })));
    }
    if (std::find(nodes.begin(), nodes.end(), hits[0]) != nodes.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("strategy.nodes: '", name, "' is there twice; a daemon holds one stage"));
    }
    nodes.push_back(hits[0]);
  }
  const int stages = strategy.stages();
  if (stages != 0 && stages != static_cast<int>(nodes.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("strategy.nodes: ", nodes.size(), " daemons for ", stages,
                     " stages (strategy.stages or layers_per_stage)"));
  }
  if (static_cast<int>(nodes.size()) > input.job.model().layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("strategy.nodes: ", nodes.size(), " daemons, but model.layers is ",
                     input.job.model().layers(), ": a stage holds at least one layer"));
  }
  return nodes;
}

struct Pool {
  std::vector<const NodeInfo*> nodes;
  std::vector<std::string> unfit;
  absl::Status data_error;
};

Pool UsableNodes(const PlannerInput& input) {
  Pool pool;
  bool any_data = false;
  for (const NodeInfo& n : input.topology.nodes()) {
    if (!HasCompute(n)) {
      pool.unfit.push_back(absl::StrCat(n.name(), " has not measured its compute"));
      continue;
    }
    absl::Status data = CountSamples(input.job, n).status();
    any_data = any_data || data.ok();
    if (!data.ok() && pool.data_error.ok()) pool.data_error = data;
    pool.nodes.push_back(&n);
  }
  if (any_data) pool.data_error = absl::OkStatus();
  std::map<const NodeInfo*, double> speed;
  for (const NodeInfo* n : pool.nodes)
    speed[n] = StageTime(input.job, *n, 0, input.job.model().layers()).sum();
  std::sort(pool.nodes.begin(), pool.nodes.end(), [&](const NodeInfo* a, const NodeInfo* b) {
    return speed[a] != speed[b] ? speed[a] < speed[b] : a->id() < b->id();
  });
  if (static_cast<int>(pool.nodes.size()) > kMaxPlannedNodes) {
    pool.unfit.push_back(absl::StrCat(pool.nodes.size() - kMaxPlannedNodes, " slower daemons"));
    pool.nodes.resize(kMaxPlannedNodes);
  }
  return pool;
}

// The best of the promising orders for this many stages; the first refusal if none can run.
absl::StatusOr<Placement> BestFor(const PlannerInput& input, const Pool& pool, int stages,
                                  const LinkIndex& links) {
  const std::vector<int> layers(input.job.strategy().layers_per_stage().begin(),
                                input.job.strategy().layers_per_stage().end());
  absl::StatusOr<Placement> best = NoLinks(pool.nodes, stages, links);
  if (absl::Status data = NoEnds(input.job, pool.nodes); stages > 1 && !data.ok()) return data;
  bool first = true;
  for (const Order& order : PromisingOrders(input.job, pool.nodes, stages, links)) {
    std::vector<const NodeInfo*> nodes;
    for (int i : order) nodes.push_back(pool.nodes[i]);
    absl::StatusOr<Placement> p =
        PricePlacement(input.job, nodes, layers, links, {input.start_step, -1}, Effort::kQuick);
    if (p.ok() ? (!best.ok() || p->cost_s < best->cost_s * (1 - 1e-9)) : first) best = std::move(p);
    first = false;
  }
  return best;
}

}  // namespace

std::vector<std::vector<int>> PromisingOrders(const JobSpec& job,
                                              const std::vector<const NodeInfo*>& nodes, int stages,
                                              const LinkIndex& links) {
  const int n = nodes.size();
  const Rough rough(job, nodes, links);
  Best best;
  if (stages == 1) {
    for (int i = 0; i < n; ++i) best.Offer(rough.Score({i}), {i});
  } else if (CountOrders(n, stages) <= kExhaustiveOrders) {
    Order prefix;
    std::vector<bool> used(n);
    AllOrders(rough, n, stages, &prefix, &used, &best);
  } else {
    int starts = 0;
    for (int i = 0; i < n && starts < kGreedyStarts; ++i) {
      if (!rough.has_data(i)) continue;
      GreedyOrder(rough, n, stages, i, &best);
      ++starts;
    }
  }
  return best.orders();
}

absl::StatusOr<Found> FindPlacement(const PlannerInput& input, const LinkIndex& links) {
  Found found;
  const StrategySpec& strategy = input.job.strategy();
  if (!strategy.nodes().empty()) {
    ASSIGN_OR_RETURN(const std::vector<const NodeInfo*> nodes, NamedNodes(input));
    const std::vector<int> layers(strategy.layers_per_stage().begin(),
                                  strategy.layers_per_stage().end());
    ASSIGN_OR_RETURN(found.best,
                     PricePlacement(input.job, nodes, layers, links, {input.start_step, -1}));
    found.considered.push_back(absl::StrCat(Stages(nodes.size()), " on ", Names(found.best),
                                            ", as the job says: ", FormatSeconds(found.best.step_s),
                                            " a step"));
    KeepPrevious(input, nodes, links, &found);
    return found;
  }
  const Pool pool = UsableNodes(input);
  const int wanted = strategy.stages();
  if (pool.nodes.empty() || wanted > static_cast<int>(pool.nodes.size()))
    return TooFew(input, pool.nodes, pool.unfit, std::max(1, wanted));
  if (!pool.data_error.ok()) return pool.data_error;
  const int most = std::min<int>(input.job.model().layers(), pool.nodes.size());
  absl::StatusOr<Placement> best = absl::InternalError("no stage count was tried");
  size_t best_line = 0;
  const auto line = [](const Placement& p) {
    return absl::StrCat(Stages(p.nodes.size()), ": ", FormatSeconds(p.step_s), " a step (",
                        Names(p), ")");
  };
  for (int stages = wanted != 0 ? wanted : 1; stages <= (wanted != 0 ? wanted : most); ++stages) {
    absl::StatusOr<Placement> p = BestFor(input, pool, stages, links);
    found.considered.push_back(
        p.ok() ? line(*p) : absl::StrCat(Stages(stages), ": not possible: ", p.status().message()));
    if (p.ok() ? (!best.ok() || p->cost_s <= kStagesMustPay * best->cost_s) : !best.ok()) {
      best = std::move(p);
      best_line = found.considered.size() - 1;
    }
  }
  if (!best.ok()) return best.status();
  ASSIGN_OR_RETURN(found.best, PricePlacement(input.job, best->nodes, best->layers, links,
                                              {input.start_step, -1}));
  found.considered[best_line] = line(found.best);
  KeepPrevious(input, pool.nodes, links, &found);
  return found;
}

}  // namespace isthmus::coordinator
