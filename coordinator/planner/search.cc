#include "coordinator/planner/search.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/orders.h"
#include "coordinator/planner/planner_resume.h"
#include "coordinator/planner/random_plans.h"
#include "coordinator/planner/refine.h"
#include "proto/job/job_defaults.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

constexpr int kRandomStarts = 200;  // layouts of replicas that are drawn, the best one as a start
constexpr int64_t kMostStartPasses = int64_t{1} << 14;  // of these together
constexpr size_t kRefinedShapes = 3;
constexpr double kWorthRefining = 1.15;  // times the cost of the best shape
constexpr int kNamedPairs = 5;           // in the words of a refusal

std::vector<std::string> WhyAbsent(const PlannerInput& input) {
  std::vector<std::string> why;
  for (const AbsentNode& node : input.absent) why.push_back(node.why);
  return why;
}

// Data that no daemon holds as the job says, but some hold otherwise: no wait for daemons cures it.
absl::Status WrongData(const PlannerInput& input) {
  std::vector<const NodeInfo*> nodes;
  for (const NodeInfo& node : input.topology.nodes()) nodes.push_back(&node);
  for (const AbsentNode& absent : input.absent) {
    if (absent.node.has_value()) nodes.push_back(&*absent.node);
  }
  absl::Status wrong;
  for (const NodeInfo* node : nodes) {
    absl::Status data = CountSamples(input.job, *node).status();
    if (data.ok()) return data;
    if (absl::IsInvalidArgument(data) && wrong.ok()) wrong = std::move(data);
  }
  return wrong;
}

// A refusal for want of daemons: Unavailable where all that are missing come by themselves, else
// ResourceExhausted: somebody has to start them. Faults of the data come first.
absl::Status Missing(const PlannerInput& input, bool come, const std::string& words) {
  RETURN_IF_ERROR(WrongData(input));
  return come ? absl::UnavailableError(words) : absl::ResourceExhaustedError(words);
}

absl::Status TooFew(const PlannerInput& input, const std::vector<const NodeInfo*>& nodes,
                    const std::vector<std::string>& unfit, int replicas, int stages) {
  std::vector<std::string> out = WhyAbsent(input);
  out.insert(out.end(), unfit.begin(), unfit.end());
  const auto come = std::count_if(input.absent.begin(), input.absent.end(),
                                  [](const AbsentNode& node) { return node.comes; });
  const bool enough = static_cast<int>(nodes.size() + come) >= replicas * stages;
  return Missing(
      input, enough,
      absl::StrCat(ShapeWords(replicas, stages),
                   replicas > 1  ? absl::StrCat(" need ", replicas * stages, " daemons; ")
                   : stages == 1 ? " needs as many daemons; "
                                 : " need as many daemons; ",
                   nodes.size(), nodes.size() == 1 ? " is" : " are", " free",
                   nodes.empty()
                       ? ""
                       : absl::StrCat(" (",
                                      absl::StrJoin(nodes, ", ",
                                                    [](std::string* o, const NodeInfo* n) {
                                                      absl::StrAppend(o, n->name());
                                                    }),
                                      ")"),
                   out.empty() ? "" : absl::StrCat("; not usable: ", absl::StrJoin(out, "; "))));
}

absl::Status NoLinks(const std::vector<const NodeInfo*>& nodes, int replicas, int stages,
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
      "links: no order of ", replicas * stages,
      replicas > 1 ? " daemons has usable links between neighbours and between replicas: "
                   : " daemons has usable links between neighbours and between its ends: ",
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

// strategy.nodes, cut into as many chains as there are replicas.
absl::StatusOr<NodeChains> NamedNodes(const PlannerInput& input) {
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
      const bool comes = std::any_of(
          input.absent.begin(), input.absent.end(),
          [&](const AbsentNode& n) { return n.comes && (n.name == name || n.id == name); });
      return Missing(
          input, comes,
          absl::StrCat("strategy.nodes names '", name, "', which is not free; free are: ",
                       there.empty() ? "none" : absl::StrJoin(there, ", "),
                       input.absent.empty() ? ""
                                            : absl::StrCat("; not usable: ",
                                                           absl::StrJoin(WhyAbsent(input), "; "))));
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
  const int replicas = std::max(1, strategy.replicas());
  const int wanted = WantedStages(strategy), named = static_cast<int>(nodes.size());
  if (wanted != 0 ? named != replicas * wanted : named % replicas != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy.nodes: ", named, " daemons for ",
        replicas == 1 ? absl::StrCat(wanted, " stages (strategy.stages or layers_per_stage)")
        : wanted == 0
            ? absl::StrCat(replicas, " replicas (strategy.replicas): no equal chains")
            : absl::StrCat(ShapeWords(replicas, wanted), ", which need ", replicas * wanted)));
  }
  const int stages = named / replicas;
  if (stages > input.job.model().layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("strategy.nodes: ", stages, " daemons", replicas > 1 ? " a replica" : "",
                     ", but model.layers is ", input.job.model().layers(),
                     ": a stage holds at least one layer"));
  }
  NodeChains chains;
  for (int r = 0; r < replicas; ++r)
    chains.emplace_back(nodes.begin() + r * stages, nodes.begin() + (r + 1) * stages);
  return chains;
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

std::vector<int> LayersOf(const JobSpec& job) {
  const auto& layers = job.strategy().layers_per_stage();
  return {layers.begin(), layers.end()};
}

// The chains that are worth a price, best first by the rough score.
std::vector<Chains> Promising(const RoughScore& rough, int replicas, int stages) {
  if (replicas > 1) return PromisingChains(rough, replicas, stages);
  std::vector<Chains> out;
  for (const Order& order : PromisingOrders(rough, stages)) out.push_back({order});
  return out;
}

NodeChains ChainsOf(const Pool& pool, const Chains& chains) {
  NodeChains out;
  for (const Order& order : chains) {
    out.emplace_back();
    for (int i : order) out.back().push_back(pool.nodes[i]);
  }
  return out;
}

// The best of the promising layouts of this shape; the first refusal if none can run.
absl::StatusOr<Layout> BestFor(const PlannerInput& input, const Pool& pool, const RoughScore& rough,
                               int replicas, int stages, const LinkIndex& links, int64_t* priced) {
  absl::StatusOr<Layout> best = NoLinks(pool.nodes, replicas, stages, links);
  if (absl::Status data = NoEnds(input.job, pool.nodes); stages > 1 && !data.ok()) return data;
  bool first = true;
  for (const Chains& chains : Promising(rough, replicas, stages)) {
    absl::StatusOr<Layout> layout =
        PriceLayout(input.job, ChainsOf(pool, chains), LayersOf(input.job), links,
                    {input.start_step, -1}, Effort::kQuick);
    ++*priced;
    if (layout.ok() ? (!best.ok() || layout->cost_s < best->cost_s * (1 - 1e-9)) : first)
      best = std::move(layout);
    first = false;
  }
  return best;
}

std::string Line(const Layout& layout) {
  return absl::StrCat(ShapeWords(layout.replicas(), layout.stages()), ": ",
                      FormatSeconds(layout.step_s), " a step (", NamesOf(layout), ")");
}

struct Range {
  int least = 1, most = 1;
};

// Numbers of replicas to compare.
Range ReplicasOf(const PlannerInput& input, const Pool& pool) {
  const int wanted = input.job.strategy().replicas();
  if (wanted != 0) return {wanted, wanted};
  return {1, std::min({static_cast<int>(pool.nodes.size()), kMostReplicas,
                       input.job.recipe().global_batch()})};
}

struct Shape {
  Layout best;      // of its layouts, priced with Effort::kQuick
  size_t line = 0;  // of Found::considered
};

// Where a refinement of a shape begins. The rough score of replicas is a poor guide: the best of
// some that are drawn at random is another start.
std::vector<Layout> StartsOf(const JobSpec& job, const Pool& pool, const LinkIndex& links,
                             const Remaining& remaining, Layout best, int64_t* priced) {
  std::vector<Layout> starts;
  starts.push_back(std::move(best));  // the first of two that cost the same is taken
  const int replicas = starts[0].replicas(), stages = starts[0].stages();
  if (replicas == 1) return starts;
  JobSpec shape = job;
  shape.mutable_strategy()->set_replicas(replicas);
  shape.mutable_strategy()->set_stages(stages);
  const int64_t draws =
      std::min<int64_t>(kRandomStarts, kMostStartPasses / (int64_t{2} * Micros(job) * stages));
  RandomPlans random =
      BestRandomPlan(shape, pool.nodes, links, remaining, static_cast<int>(draws), /*seed=*/1);
  *priced += random.priced;
  if (random.best.ok()) starts.push_back(*std::move(random.best));
  return starts;
}

// The shapes that may be the best, improved and priced in full. One stage more must pay.
absl::StatusOr<Layout> BestOf(const PlannerInput& input, const Pool& pool, const LinkIndex& links,
                              std::vector<Shape> shapes, Found* found) {
  std::stable_sort(shapes.begin(), shapes.end(),
                   [](const Shape& a, const Shape& b) { return a.best.cost_s < b.best.cost_s; });
  while (shapes.size() > kRefinedShapes ||
         shapes.back().best.cost_s > kWorthRefining * shapes.front().best.cost_s)
    shapes.pop_back();
  std::sort(shapes.begin(), shapes.end(),
            [](const Shape& a, const Shape& b) { return a.line < b.line; });
  const Remaining remaining{input.start_step, -1};
  absl::StatusOr<Layout> best;
  for (Shape& shape : shapes) {
    std::vector<Layout> promising;
    for (Layout& start :
         StartsOf(input.job, pool, links, remaining, std::move(shape.best), &found->priced)) {
      Refined refined = Refine(input.job, pool.nodes, links, remaining,
                               !LayersOf(input.job).empty(), std::move(start));
      found->priced += refined.priced;
      for (Layout& layout : refined.layouts) promising.push_back(std::move(layout));
    }
    absl::StatusOr<Layout> of_shape;
    for (const Layout& layout : promising) {
      absl::StatusOr<Layout> full =
          PriceLayout(input.job, ChainsOf(layout), layout.chain().layers, links, remaining);
      if (full.ok() ? (!of_shape.ok() || full->cost_s < of_shape->cost_s * (1 - 1e-9))
                    : !of_shape.ok())
        of_shape = std::move(full);
    }
    if (of_shape.ok()) found->considered[shape.line] = Line(*of_shape);
    if (of_shape.ok() ? (!best.ok() || of_shape->cost_s <= kStagesMustPay * best->cost_s)
                      : !best.ok())
      best = std::move(of_shape);
  }
  return best;
}

absl::StatusOr<Found> FindNamed(const PlannerInput& input, const LinkIndex& links) {
  Found found;
  ASSIGN_OR_RETURN(const NodeChains chains, NamedNodes(input));
  ASSIGN_OR_RETURN(found.best, PriceLayout(input.job, chains, LayersOf(input.job), links,
                                           {input.start_step, -1}));
  found.priced = 1;
  found.considered.push_back(absl::StrCat(
      ShapeWords(found.best.replicas(), found.best.stages()), " on ", NamesOf(found.best),
      ", as the job says: ", FormatSeconds(found.best.step_s), " a step"));
  KeepPrevious(input, found.best.nodes(), links, &found);
  return found;
}

}  // namespace

absl::StatusOr<Found> FindLayout(const PlannerInput& input, const LinkIndex& links) {
  const StrategySpec& strategy = input.job.strategy();
  if (!strategy.nodes().empty()) return FindNamed(input, links);
  Found found;
  const Pool pool = UsableNodes(input);
  const int wanted = WantedStages(strategy), free = static_cast<int>(pool.nodes.size());
  const int least_replicas = std::max(1, strategy.replicas());
  if (free < least_replicas * std::max(1, wanted))
    return TooFew(input, pool.nodes, pool.unfit, least_replicas, std::max(1, wanted));
  if (!pool.data_error.ok()) return pool.data_error;
  std::vector<Shape> shapes;
  absl::Status refusal;
  const RoughScore rough(input.job, pool.nodes, links);
  const Range replicas = ReplicasOf(input, pool);
  for (int r = replicas.least; r <= replicas.most; ++r) {
    const int most = wanted != 0 ? wanted : std::min(input.job.model().layers(), free / r);
    for (int stages = wanted != 0 ? wanted : 1; stages <= most && r * stages <= free; ++stages) {
      absl::StatusOr<Layout> layout = BestFor(input, pool, rough, r, stages, links, &found.priced);
      found.considered.push_back(
          layout.ok()
              ? Line(*layout)
              : absl::StrCat(ShapeWords(r, stages), ": not possible: ", layout.status().message()));
      if (layout.ok()) {
        shapes.push_back({*std::move(layout), found.considered.size() - 1});
      } else {
        refusal = layout.status();  // of the largest shape, if none can run
      }
    }
  }
  ISTHMUS_CHECK(!found.considered.empty());  // there are daemons for the least of each
  if (shapes.empty()) return refusal;
  ASSIGN_OR_RETURN(found.best, BestOf(input, pool, links, std::move(shapes), &found));
  KeepPrevious(input, pool.nodes, links, &found);
  return found;
}

}  // namespace isthmus::coordinator
