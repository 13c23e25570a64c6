#include "coordinator/planner/compare.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/planner/compare_words.h"
#include "coordinator/planner/counted_plan.h"
#include "coordinator/planner/genetic_search.h"
#include "coordinator/planner/random_plans.h"
#include "coordinator/planner/refine.h"
#include "proto/job/job_defaults.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

constexpr uint64_t kSeed = 1;
constexpr size_t kTriedOfGenetic = 8;  // of its last population, until one can run

// The job with `none` wherever it may have a codec.
PlannerInput Uncompressed(PlannerInput input) {
  CompressionSpec* c = input.job.mutable_compression();
  c->set_forward("none");
  c->set_backward("none");
  c->set_evaluation("none");
  c->set_tied("none");
  c->set_gradients("none");
  c->set_backward_when("all");
  c->clear_boundaries();
  return input;
}

// Daemons that a plan may take, in the order of the topology or of strategy.nodes; beyond
// kMaxPlannedNodes the fastest ones.
std::vector<const NodeInfo*> NodesOf(const PlannerInput& input) {
  std::vector<const NodeInfo*> nodes;
  const auto& named = input.job.strategy().nodes();
  for (const NodeInfo& node : input.topology.nodes())
    if (named.empty() && HasCompute(node)) nodes.push_back(&node);
  for (const std::string& name : named) {
    for (const NodeInfo& node : input.topology.nodes())
      if (node.name() == name || node.id() == name) nodes.push_back(&node);
  }
  if (nodes.size() <= kMaxPlannedNodes) return nodes;
  std::vector<double> seconds;
  for (const NodeInfo* node : nodes) seconds.push_back(StageTime(input.job, *node, 0, 1).sum());
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  std::vector<const NodeInfo*> fastest;
  for (size_t i = 0; i < nodes.size() && fastest.size() < kMaxPlannedNodes; ++i)
    if (seconds[i] <= sorted[kMaxPlannedNodes - 1]) fastest.push_back(nodes[i]);
  return fastest;
}

using IdChains = std::vector<std::vector<std::string>>;  // by replica, by stage

class Comparer {
 public:
  explicit Comparer(const PlannerInput& input)
      : input_(input),
        usable_(InputOnCards(input)),
        links_(usable_.topology),
        nodes_(NodesOf(usable_)) {
    const StrategySpec& strategy = input.job.strategy();
    replicas_ = std::max(1, strategy.replicas());
    stages_ = WantedStages(strategy) > 0 ? WantedStages(strategy)
                                         : std::min(input.job.model().layers(), all() / replicas_);
  }

  absl::StatusOr<PlanComparison> Run() {
    int64_t tried = 0;
    ASSIGN_OR_RETURN(const PlannedJob ours, MakeCountedPlan(input_, &tried));
    std::vector<std::string> names;
    for (const NodeInfo* node : nodes_) names.push_back(node->name());
    CompareWords words(input_, std::move(names), ours);
    words.AddPlan("equal split", EqualSplit(), 1);
    AddGenetic(&words);
    AddRandom(&words);
    int64_t tried_without = 0;
    const absl::StatusOr<PlannedJob> none = MakeCountedPlan(Uncompressed(input_), &tried_without);
    words.AddPlan(kNoCompression, none, tried_without);
    words.AddOurs(tried);
    words.AddGain(kCodecs, "without compression, planned anew for that,", none);
    AddGains(ours.plan, &words);
    return words.Take();
  }

 private:
  int all() const { return static_cast<int>(nodes_.size()); }
  int layers() const { return input_.job.model().layers(); }

  // On these daemons; `layers` empty: with the cut that computes fastest.
  absl::StatusOr<PlannedJob> PlanAs(const IdChains& chains, const std::vector<int>& layers) const {
    PlannerInput pinned = input_;
    StrategySpec* strategy = pinned.job.mutable_strategy();
    strategy->clear_nodes();
    for (const auto& chain : chains)
      for (const std::string& id : chain) strategy->add_nodes(id);
    strategy->set_replicas(static_cast<int>(chains.size()));
    strategy->set_stages(static_cast<int>(chains[0].size()));
    *strategy->mutable_layers_per_stage() = {layers.begin(), layers.end()};
    return MakePlan(pinned);
  }

  // OK: there are daemons for the shape of equal split and genetic.
  absl::Status CheckShape() const {
    if (stages_ > 0 && replicas_ * stages_ <= all()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(ShapeWords(replicas_, stages_), " need more than ", all(), " daemons"));
  }

  absl::StatusOr<PlannedJob> EqualSplit() const {
    RETURN_IF_ERROR(CheckShape());
    IdChains chains(replicas_);
    for (int i = 0; i < replicas_ * stages_; ++i) chains[i / stages_].push_back(nodes_[i]->id());
    return PlanAs(chains, EqualLayers(layers(), stages_));
  }

  void AddGenetic(CompareWords* words) const {
    if (const absl::Status shape = CheckShape(); !shape.ok())
      return words->AddPlan("genetic", shape, 0);
    const CommunicationCost cost(input_.job, nodes_, links_, replicas_, stages_);
    const GeneticResult found = SearchGenetically(
        all(), replicas_ * stages_, [&](const Order& order) { return cost.Of(order); }, kSeed);
    absl::StatusOr<PlannedJob> best = absl::InternalError("no order");
    for (size_t i = 0; i < found.orders.size() && i < kTriedOfGenetic && !best.ok(); ++i) {
      IdChains chains(replicas_);
      for (int at = 0; at < replicas_ * stages_; ++at)
        chains[at % replicas_].push_back(nodes_[found.orders[i][at]]->id());
      absl::StatusOr<PlannedJob> plan = PlanAs(chains, EqualLayers(layers(), stages_));
      if (plan.ok() || i == 0) best = std::move(plan);
    }
    words->AddPlan("genetic", best, found.evaluated);
  }

  void AddRandom(CompareWords* words) const {
    const RandomPlans random =
        BestRandomPlan(input_.job, nodes_, links_, {input_.start_step, -1}, kRandomPlans, kSeed);
    if (!random.best.ok()) return words->AddPlan("random", random.best.status(), random.priced);
    IdChains chains;
    for (const Placement& p : random.best->chains) {
      chains.emplace_back();
      for (const NodeInfo* node : p.nodes) chains.back().push_back(node->id());
    }
    words->AddPlan("random", PlanAs(chains, random.best->chain().layers), random.priced);
  }

  // One choice of the planner at a time is taken back.
  void AddGains(const Plan& ours, CompareWords* words) const {
    const StrategySpec& strategy = input_.job.strategy();
    const int stages = StagesOf(ours), replicas = ours.ranks_size() / stages;
    IdChains chains(replicas), listed(replicas);
    std::vector<int> cut;
    std::set<std::string> taken;
    for (const RankPlan& rank : ours.ranks()) {
      if (rank.replica() == 0) cut.push_back(rank.end_layer() - rank.first_layer());
      chains[rank.replica()].push_back(rank.node_id());
      taken.insert(rank.node_id());
    }
    if (const std::vector<int> equal = EqualLayers(layers(), stages); cut != equal)
      words->AddGain("cut", "with equal numbers of layers on the same daemons",
                     PlanAs(chains, equal));
    int at = 0;
    for (const NodeInfo& node : input_.topology.nodes())
      if (taken.count(node.id()) > 0) listed[at++ / stages].push_back(node.id());
    if (listed != chains && strategy.layers_per_stage().empty() && strategy.nodes().empty())
      words->AddGain("order", "with the same daemons in the order in which they are listed",
                     PlanAs(listed, {}));
    if (WantedStages(strategy) != 0 || !strategy.nodes().empty() || !CheckShape().ok() ||
        (stages == stages_ && replicas == replicas_))
      return;
    PlannerInput whole = input_;
    whole.job.mutable_strategy()->set_stages(stages_);
    whole.job.mutable_strategy()->set_replicas(replicas_);
    words->AddGain("number of stages",
                   absl::StrCat("as ", ShapeWords(replicas_, stages_), ", planned anew for that,"),
                   MakePlan(whole));
  }

  const PlannerInput& input_;
  const PlannerInput usable_;
  const LinkIndex links_;
  const std::vector<const NodeInfo*> nodes_;  // into usable_
  int replicas_ = 1, stages_ = 1;             // of equal split and genetic
};

}  // namespace

absl::StatusOr<PlanComparison> ComparePlans(const PlannerInput& input) {
  return Comparer(input).Run();
}

}  // namespace isthmus::coordinator
