#include "coordinator/planner/refine.h"

#include <algorithm>
#include <utility>

namespace isthmus::coordinator {
namespace {

class Refiner {
 public:
  Refiner(const JobSpec& job, const std::vector<const NodeInfo*>& nodes, const LinkIndex& links,
          const Remaining& remaining, bool cut_given, Layout start)
      : job_(job),
        nodes_(nodes),
        links_(links),
        remaining_(remaining),
        cut_given_(cut_given),
        best_(std::move(start)) {
    Keep(best_);
  }

  Refined Run() {
    const int64_t passes = int64_t{2} * Micros(job_) * best_.stages();
    most_ = std::min<int64_t>(kMostRefinements, kMostRefinedPasses / passes);
    while ((Swap() || (!cut_given_ && MoveLayers())) && priced_ < most_) {
    }
    while (most_ < kMostRefinements && close_.size() > 1) close_.pop_back();
    while (close_.back().cost_s > kClose * close_.front().cost_s) close_.pop_back();
    if (!cut_given_ && best_.stages() > 1) AddEqual();
    return {std::move(close_), priced_};
  }

 private:
  bool Try(const NodeChains& chains, const std::vector<int>& layers) {
    if (priced_ >= most_) return false;
    ++priced_;
    absl::StatusOr<Layout> other =
        PriceLayout(job_, chains, layers, links_, remaining_, Effort::kQuick);
    if (!other.ok()) return false;
    Keep(*other);
    if (other->cost_s > kRefinementMustPay * best_.cost_s) return false;
    best_ = *std::move(other);
    return true;
  }

  void Keep(const Layout& layout) {
    const auto at =
        std::upper_bound(close_.begin(), close_.end(), layout,
                         [](const Layout& a, const Layout& b) { return a.cost_s < b.cost_s; });
    const bool again = std::any_of(close_.begin(), close_.end(), [&](const Layout& other) {
      return other.nodes() == layout.nodes() && other.chain().layers == layout.chain().layers;
    });
    if (again || at - close_.begin() > static_cast<ptrdiff_t>(kCloseLayouts)) return;
    close_.insert(at, layout);
    if (close_.size() > kCloseLayouts + 1) close_.pop_back();
  }

  void AddEqual() {
    const Layout& best = close_.front();
    ++priced_;
    absl::StatusOr<Layout> equal =
        PriceLayout(job_, ChainsOf(best), EqualLayers(job_.model().layers(), best.stages()), links_,
                    remaining_, Effort::kQuick);
    if (equal.ok() && equal->cost_s <= kCloseCut * best.cost_s) close_.push_back(*std::move(equal));
  }

  bool Swap() {
    bool better = false;
    const size_t ranks = best_.nodes().size();
    const auto stages = static_cast<size_t>(best_.stages());
    const auto at = [&](NodeChains* chains, size_t rank) -> const NodeInfo*& {
      return (*chains)[rank / stages][rank % stages];
    };
    const std::vector<int> cut = cut_given_ ? best_.chain().layers : std::vector<int>();
    for (size_t i = 0; i < ranks; ++i) {
      for (size_t j = i + 1; j < ranks; ++j) {
        NodeChains chains = ChainsOf(best_);
        std::swap(at(&chains, i), at(&chains, j));
        better = Try(chains, cut) || better;
      }
      for (const NodeInfo* node : nodes_) {
        const std::vector<const NodeInfo*> busy = best_.nodes();
        if (std::find(busy.begin(), busy.end(), node) != busy.end()) continue;
        NodeChains chains = ChainsOf(best_);
        at(&chains, i) = node;
        better = Try(chains, cut) || better;
      }
    }
    return better;
  }

  bool MoveLayers() {
    bool better = false;
    for (int from = 0; from < best_.stages(); ++from) {
      for (int to = 0; to < best_.stages(); ++to) {
        std::vector<int> layers = best_.chain().layers;
        if (from == to || layers[from] < 2) continue;
        --layers[from];
        ++layers[to];
        better = Try(ChainsOf(best_), layers) || better;
      }
    }
    return better;
  }

  const JobSpec& job_;
  const std::vector<const NodeInfo*>& nodes_;
  const LinkIndex& links_;
  const Remaining& remaining_;
  const bool cut_given_;
  Layout best_;
  std::vector<Layout> close_;  // the best first; never empty
  int64_t priced_ = 0, most_ = 0;
};

}  // namespace

std::vector<int> EqualLayers(int layers, int stages) {
  std::vector<int> cut;
  for (int s = 0; s < stages; ++s) cut.push_back(layers / stages + (s < layers % stages));
  return cut;
}

Refined Refine(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
               const LinkIndex& links, const Remaining& remaining, bool cut_given, Layout start) {
  return Refiner(job, nodes, links, remaining, cut_given, std::move(start)).Run();
}

}  // namespace isthmus::coordinator
