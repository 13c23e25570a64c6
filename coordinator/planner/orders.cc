#include "coordinator/planner/orders.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "coordinator/planner/planner_input.h"

namespace isthmus::coordinator {
namespace {

constexpr int kGreedyStarts = 8;
constexpr double kBetter = 1 - 1e-9;  // a score below this share of another one is better

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

void AllOrders(const RoughScore& rough, int nodes, int stages, Order* prefix,
               std::vector<bool>* used, Best* best) {
  if (static_cast<int>(prefix->size()) == stages) {
    best->Offer(rough.Of(*prefix), *prefix);
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
void GreedyOrder(const RoughScore& rough, int nodes, int stages, int start, Best* best) {
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
  double score = rough.Of(order);
  for (bool better = true; better;) {
    better = false;
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t j = i + 1; j < order.size(); ++j) {
        std::swap(order[i], order[j]);
        const double s = rough.Of(order);
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

// Chains of a list of daemons: one replica after the other, or stage by stage, so that daemons of
// like speed (the list goes by speed) hold one stage.
Chains Cut(const std::vector<int>& nodes, int replicas, int stages, bool by_stage) {
  Chains chains(replicas, Order(stages));
  for (int r = 0; r < replicas; ++r) {
    for (int s = 0; s < stages; ++s)
      chains[r][s] = nodes[by_stage ? s * replicas + r : r * stages + s];
  }
  return chains;
}

// Every way to fill the chains, one form of each: first daemons rise from replica to replica.
template <typename Offer>
void AllChains(const RoughScore& rough, int replicas, int stages, Order* order,
               std::vector<bool>* used, const Offer& offer) {
  const int at = static_cast<int>(order->size());
  if (at == replicas * stages) {
    const Chains chains = Cut(*order, replicas, stages, false);
    offer(chains, rough.Of(chains));
    return;
  }
  for (int i = 0; i < rough.nodes(); ++i) {
    if ((*used)[i] || (at > 0 && at % stages == 0 && i < (*order)[at - stages])) continue;
    (*used)[i] = true;
    order->push_back(i);
    AllChains(rough, replicas, stages, order, used, offer);
    order->pop_back();
    (*used)[i] = false;
  }
}

// Improves chains by swaps of two daemons, one of which may be idle.
class Swaps {
 public:
  Swaps(const RoughScore& rough, Chains chains)
      : rough_(rough), chains_(std::move(chains)), score_(rough.Of(chains_)) {
    std::vector<bool> used(rough.nodes());
    for (Order& chain : chains_) {
      for (int& node : chain) {
        used[node] = true;
        slots_.push_back(&node);
      }
    }
    busy_ = slots_.size();
    for (int i = 0; i < rough.nodes(); ++i) {
      if (!used[i]) idle_.push_back(i);
    }
    for (int& node : idle_) slots_.push_back(&node);
  }

  void Run() {
    while (Improve()) {
    }
  }
  const Chains& chains() const { return chains_; }
  double score() const { return score_; }

 private:
  bool Improve() {
    bool better = false;
    for (size_t i = 0; i < busy_; ++i) {
      for (size_t j = i + 1; j < slots_.size(); ++j) {
        if (++tried_ > kMostSwaps) return false;
        std::swap(*slots_[i], *slots_[j]);
        const double score = rough_.Of(chains_);
        if (score < score_ * kBetter) {
          score_ = score;
          better = true;
        } else {
          std::swap(*slots_[i], *slots_[j]);
        }
      }
    }
    return better;
  }

  const RoughScore& rough_;
  Chains chains_;
  std::vector<int> idle_;
  std::vector<int*> slots_;  // into chains_, then into idle_
  size_t busy_ = 0;
  double score_;
  int tried_ = 0;
};

// A replica's daemons are interchangeable with another's: the order of replicas is that of their
// first daemons, so that one layout has one form.
Chains Sorted(Chains chains) {
  std::sort(chains.begin(), chains.end());
  return chains;
}

}  // namespace

std::vector<Order> PromisingOrders(const RoughScore& rough, int stages) {
  const int n = rough.nodes();
  Best best;
  if (stages == 1) {
    for (int i = 0; i < n; ++i) best.Offer(rough.Of(Order{i}), {i});
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

std::vector<Chains> PromisingChains(const RoughScore& rough, int replicas, int stages) {
  const int n = rough.nodes(), wanted = replicas * stages;
  if (wanted > n) return {};
  std::vector<int> fastest;
  for (int i = 0; i < n; ++i) fastest.push_back(i);
  std::sort(fastest.begin(), fastest.end(), [&](int a, int b) {
    return std::make_pair(rough.whole_s(a), a) < std::make_pair(rough.whole_s(b), b);
  });
  std::vector<std::pair<double, Chains>> found;
  const auto offer = [&](const Chains& chains, double score) {
    if (score < RoughScore::kImpossible) found.emplace_back(score, Sorted(chains));
  };
  if (CountOrders(n, wanted) <= kExhaustiveLayouts) {
    Order order;
    std::vector<bool> used(n);
    AllChains(rough, replicas, stages, &order, &used, offer);
  } else {
    for (const bool by_stage : {true, false}) {
      Swaps swaps(rough, Cut(fastest, replicas, stages, by_stage));
      swaps.Run();
      offer(swaps.chains(), swaps.score());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<Chains> out;
  for (auto& entry : found) {
    if (static_cast<int>(out.size()) < kPricedLayouts &&
        (out.empty() || out.back() != entry.second))
      out.push_back(std::move(entry.second));
  }
  return out;
}

}  // namespace isthmus::coordinator
