#include "coordinator/planner/planner_resume.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/pricing.h"
#include "proto/codec/codec_text.h"

namespace isthmus::coordinator {
namespace {

// The step since which the daemons of the previous plan have the delta buffers that `job` goes on
// with on the same boundaries; -1: none. Only visits under that one plan are counted: what it took
// over from the plan before is not known here.
int64_t BuffersSince(const PlannerInput& input, const JobSpec& job) {
  const JobSpec& was = input.previous.job();
  if (!input.from_checkpoint || was.data().path() != job.data().path() ||
      was.seed() != job.seed() || was.recipe().global_batch() != job.recipe().global_batch())
    return -1;
  for (const LinkPlan& link : input.previous.links()) {
    if (link.kind() != LinkPlan::BOUNDARY) continue;
    const absl::StatusOr<CodecSpec> now = ParseCodec(WantedCodecsOf(job, link.lower()).forward);
    if (!now.ok()) return -1;  // auto, chosen anew
    if ((HasBuffers(*now) || HasBuffers(link.forward())) &&
        FormatCodec(*now) != FormatCodec(link.forward()))
      return -1;
  }
  return input.previous.start_step();
}

// The job with the codecs that `auto` gave to the previous plan.
JobSpec WithPreviousCodecs(const PlannerInput& input) {
  JobSpec job = input.job;
  for (const LinkPlan& link : input.previous.links()) {
    if (link.kind() != LinkPlan::BOUNDARY) continue;
    const WantedCodecs now = WantedCodecsOf(input.job, link.lower());
    const WantedCodecs then = WantedCodecsOf(input.previous.job(), link.lower());
    const auto keep = [](const std::string& was, const std::string& is, const CodecSpec& codec) {
      return was == "auto" && is == "auto" ? FormatCodec(codec) : is;
    };
    BoundaryCodec* codec = job.mutable_compression()->add_boundaries();
    codec->set_boundary(link.lower());
    codec->set_forward(keep(then.forward, now.forward, link.forward()));
    codec->set_backward(keep(then.backward, now.backward, link.backward()));
  }
  return job;
}

std::string PreviousNames(const Plan& previous) {
  return absl::StrJoin(previous.ranks(), ", ", [](std::string* out, const RankPlan& s) {
    absl::StrAppend(out, s.node_name());
  });
}

// `job` on the previous plan's daemons, in their order, with its cut. NotFound: they are not there;
// FailedPrecondition: the job says otherwise.
absl::StatusOr<Placement> PricePrevious(const PlannerInput& input, const JobSpec& job,
                                        const std::vector<const NodeInfo*>& nodes,
                                        const LinkIndex& links) {
  const StrategySpec& strategy = input.job.strategy();
  const int stages = input.previous.ranks_size();
  const auto otherwise = [](const char* field) {
    return absl::FailedPreconditionError(absl::StrCat("the job says otherwise now (", field, ")"));
  };
  if (strategy.stages() != 0 && strategy.stages() != stages) return otherwise("strategy.stages");
  if (input.previous.ranks(stages - 1).end_layer() != input.job.model().layers())
    return otherwise("model.layers");
  std::vector<const NodeInfo*> order;
  std::vector<int> layers;
  for (const RankPlan& s : input.previous.ranks()) {
    const auto node = std::find_if(nodes.begin(), nodes.end(),
                                   [&](const NodeInfo* n) { return n->id() == s.node_id(); });
    if (node == nodes.end()) {
      if (!strategy.nodes().empty()) return otherwise("strategy.nodes");
      return absl::NotFoundError(
          absl::StrCat("daemon ", s.node_name(), " (identity ", s.node_id(), ") is not to be had"));
    }
    order.push_back(*node);
    layers.push_back(s.end_layer() - s.first_layer());
  }
  if (!strategy.layers_per_stage().empty() &&
      !std::equal(layers.begin(), layers.end(), strategy.layers_per_stage().begin(),
                  strategy.layers_per_stage().end()))
    return otherwise("strategy.layers_per_stage");
  if (!strategy.nodes().empty() && order != nodes) return otherwise("strategy.nodes");
  return PricePlacement(job, order, layers, links, {input.start_step, BuffersSince(input, job)});
}

std::string Layers(int first, int end) {
  return end - first == 1 ? absl::StrCat("layer ", first)
                          : absl::StrCat("layers ", first, "-", end - 1);
}

// "n1 (layers 0-2), n2 (layer 3)"
std::string CutOf(const Plan& previous) {
  return absl::StrJoin(previous.ranks(), ", ", [](std::string* out, const RankPlan& s) {
    absl::StrAppend(out, s.node_name(), " (", Layers(s.first_layer(), s.end_layer()), ")");
  });
}
std::string CutOf(const Placement& p) {
  std::vector<std::string> stages;
  for (size_t s = 0, first = 0; s < p.nodes.size(); first += p.layers[s], ++s) {
    const int begin = static_cast<int>(first);
    stages.push_back(
        absl::StrCat(p.nodes[s]->name(), " (", Layers(begin, begin + p.layers[s]), ")"));
  }
  return absl::StrJoin(stages, ", ");
}

bool SameDaemons(const Plan& previous, const Placement& p) {
  std::set<std::string> was, is;
  for (const RankPlan& s : previous.ranks()) was.insert(s.node_id());
  for (const NodeInfo* node : p.nodes) is.insert(node->id());
  return was == is;
}

// What the comparison rests on: "n1 51.0, n2 12.2 GFLOP/s".
std::string Figures(const Placement& was, const Placement& best) {
  std::map<std::string, double> gflops;
  for (const Placement* p : {&was, &best}) {
    for (const NodeInfo* n : p->nodes)
      gflops[n->name()] = n->block_flops() / n->block_forward_s() / 1e9;
  }
  return absl::StrCat(
      absl::StrJoin(gflops, ", ",
                    [](std::string* out, const std::pair<const std::string, double>& g) {
                      absl::StrAppend(out, g.first, " ", absl::StrFormat("%.3g", g.second));
                    }),
      " GFLOP/s");
}

// The previous placement costs too much against the best one.
std::string TooSlow(const PlannerInput& input, const Placement& was, const Placement& best,
                    double accepted) {
  std::vector<int> layers;
  for (const RankPlan& s : input.previous.ranks())
    layers.push_back(s.end_layer() - s.first_layer());
  return absl::StrCat(
      "by the newest figures of daemons (", Figures(was, best), ") and links a step would take ",
      FormatSeconds(was.step_s), " there and ", FormatSeconds(best.step_s), " on ", CutOf(best),
      ", ", std::lround(100 * (was.cost_s / best.cost_s - 1)), " % more (up to ",
      std::lround(100 * (accepted - 1)),
      " % are accepted for the states of its codecs). A job file with strategy.nodes: [",
      PreviousNames(input.previous), "] and layers_per_stage: [", absl::StrJoin(layers, ", "),
      "] is held in place whatever is measured");
}

}  // namespace

// Measurements differ a little each time; what the daemons keep of a job is worth more than that.
void KeepPrevious(const PlannerInput& input, const std::vector<const NodeInfo*>& nodes,
                  const LinkIndex& links, Found* found) {
  if (input.previous.ranks().empty()) return;
  std::string why;
  for (const bool codecs : {true, false}) {
    absl::StatusOr<Placement> previous =
        PricePrevious(input, codecs ? WithPreviousCodecs(input) : input.job, nodes, links);
    if (!previous.ok()) {
      why = std::string(previous.status().message());
      continue;
    }
    const double accepted = SameDaemons(input.previous, found->best) ? kKeepCut : kKeepPlacement;
    if (previous->cost_s > accepted * found->best.cost_s) {
      why = TooSlow(input, *previous, found->best, accepted);
      continue;
    }
    found->considered.push_back(
        absl::StrCat("kept where it was, ", PreviousNames(input.previous),
                     codecs ? ", with the codecs it had: " : ": ", FormatSeconds(previous->step_s),
                     " a step, and the daemons have the states of its codecs"));
    found->best = *std::move(previous);
    return;
  }
  found->moved_why =
      absl::StrCat("placement changed: the job was on ", CutOf(input.previous), "; ", why);
}

}  // namespace isthmus::coordinator
