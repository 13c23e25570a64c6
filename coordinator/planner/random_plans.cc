#include "coordinator/planner/random_plans.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "coordinator/planner/planner_input.h"
#include "proto/job/job_defaults.h"

namespace isthmus::coordinator {
namespace {

constexpr uint64_t kStream = 0x72616e64;

class Draws {
 public:
  Draws(const JobSpec& job, const std::vector<const NodeInfo*>& nodes, uint64_t seed)
      : job_(job), nodes_(nodes), seed_(seed) {}

  NodeChains Chains() {
    const StrategySpec& strategy = job_.strategy();
    const int all = static_cast<int>(nodes_.size());
    const int most = std::min({all, kMostReplicas, job_.recipe().global_batch()});
    const int replicas = strategy.replicas() > 0 ? strategy.replicas() : 1 + Below(most);
    const int longest = std::max(1, std::min(job_.model().layers(), all / replicas));
    const int stages = WantedStages(strategy) > 0 ? WantedStages(strategy) : 1 + Below(longest);
    if (replicas * stages > all) return {};
    for (int i = 0; i < replicas * stages; ++i) std::swap(nodes_[i], nodes_[i + Below(all - i)]);
    NodeChains chains;
    for (int r = 0; r < replicas; ++r)
      chains.emplace_back(nodes_.begin() + r * stages, nodes_.begin() + (r + 1) * stages);
    return chains;
  }

  // Empty: the one that computes fastest.
  std::vector<int> Cut(int stages) {
    const auto& given = job_.strategy().layers_per_stage();
    if (!given.empty()) return {given.begin(), given.end()};
    if (Below(2) == 0) return {};
    std::vector<int> ends;  // of stages but the last, each another one of the layers' ends
    for (int layer = 1; layer < job_.model().layers(); ++layer) ends.push_back(layer);
    for (int i = 0; i + 1 < stages; ++i)
      std::swap(ends[i], ends[i + Below(static_cast<int>(ends.size()) - i)]);
    ends.resize(stages - 1);
    std::sort(ends.begin(), ends.end());
    ends.push_back(job_.model().layers());
    std::vector<int> layers;
    for (int i = 0; i < stages; ++i) layers.push_back(ends[i] - (i > 0 ? ends[i - 1] : 0));
    return layers;
  }

 private:
  int Below(int n) { return static_cast<int>(RandomBelow(seed_, kStream, next_++, n)); }

  const JobSpec& job_;
  std::vector<const NodeInfo*> nodes_;
  const uint64_t seed_;
  uint64_t next_ = 0;
};

}  // namespace

RandomPlans BestRandomPlan(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                           const LinkIndex& links, const Remaining& remaining, int plans,
                           uint64_t seed) {
  RandomPlans out;
  out.best = absl::FailedPreconditionError("there are too few daemons for any plan");
  Draws draws(job, nodes, seed);
  int64_t passes = 0;
  for (int i = 0;
       i < kRandomDrawsForOne * plans && out.priced < plans && passes < kMostRandomPasses; ++i) {
    const NodeChains chains = draws.Chains();
    if (chains.empty()) continue;
    const auto stages = static_cast<int>(chains[0].size());
    absl::StatusOr<Layout> layout =
        PriceLayout(job, chains, draws.Cut(stages), links, remaining, Effort::kQuick);
    if (!layout.ok()) {
      if (i == 0) out.best = layout.status();
      continue;
    }
    ++out.priced;
    passes += int64_t{2} * Micros(job) * stages;
    if (!out.best.ok() || layout->cost_s < out.best->cost_s) out.best = std::move(layout);
  }
  return out;
}

}  // namespace isthmus::coordinator
