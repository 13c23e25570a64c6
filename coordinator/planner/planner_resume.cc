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
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

// 0 is between stages 0 and 1 of a replica.
int BoundaryOf(const Plan& plan, const LinkPlan& link) { return plan.ranks(link.lower()).stage(); }

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
    const absl::StatusOr<CodecSpec> now =
        ParseCodec(WantedCodecsOf(job, BoundaryOf(input.previous, link)).forward);
    if (!now.ok()) return -1;  // auto, chosen anew
    if ((HasBuffers(*now) || HasBuffers(link.forward())) &&
        FormatCodec(*now) != FormatCodec(link.forward()))
      return -1;
  }
  return input.previous.start_step();
}

// What `auto` gave to reductions, where it would still be looked at.
void KeepReduced(const JobSpec& before, JobSpec* job) {
  const CompressionSpec& was = before.compression();
  CompressionSpec* is = job->mutable_compression();
  if (before.strategy().subnetworks() != job->strategy().subnetworks() ||
      before.recipe().optimizer() != job->recipe().optimizer() || was.min_bits() != is->min_bits())
    return;
  if (is->gradients() == "auto") is->set_gradients(was.gradients());
  if (is->tied() == "auto") is->set_tied(was.tied());
}

// The job with the codecs that `auto` gave to the previous plan.
JobSpec WithPreviousCodecs(const PlannerInput& input) {
  JobSpec job = input.job;
  KeepReduced(input.previous.job(), &job);
  for (const LinkPlan& link : input.previous.links()) {
    // Those of the first replica for all: a job names the codecs of a boundary in one way.
    if (link.kind() != LinkPlan::BOUNDARY || input.previous.ranks(link.lower()).replica() != 0)
      continue;
    const int boundary = BoundaryOf(input.previous, link);
    const WantedCodecs now = WantedCodecsOf(input.job, boundary);
    const WantedCodecs then = WantedCodecsOf(input.previous.job(), boundary);
    const auto keep = [](const std::string& was, const std::string& is, const CodecSpec& codec) {
      return was == "auto" && is == "auto" ? FormatCodec(codec) : is;
    };
    BoundaryCodec* codec = job.mutable_compression()->add_boundaries();
    codec->set_boundary(boundary);
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

// `job` on the previous plan's daemons, in their order, with its replicas and its cut. NotFound:
// they are not there; FailedPrecondition: the job says otherwise.
absl::StatusOr<Layout> PricePrevious(const PlannerInput& input, const JobSpec& job,
                                     const std::vector<const NodeInfo*>& nodes,
                                     const LinkIndex& links) {
  const StrategySpec& strategy = input.job.strategy();
  const int stages = StagesOf(input.previous);
  const int replicas = input.previous.ranks_size() / stages;
  const auto otherwise = [](const char* field) {
    return absl::FailedPreconditionError(absl::StrCat("the job says otherwise now (", field, ")"));
  };
  const int wanted = WantedStages(strategy);
  if (wanted != 0 && wanted != stages) return otherwise("strategy.stages");
  if (strategy.replicas() != 0 && strategy.replicas() != replicas)
    return otherwise("strategy.replicas");
  if (input.previous.ranks(stages - 1).end_layer() != input.job.model().layers())
    return otherwise("model.layers");
  NodeChains chains(replicas);
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
    chains[s.replica()].push_back(*node);
    if (s.replica() == 0) layers.push_back(s.end_layer() - s.first_layer());
  }
  if (!strategy.layers_per_stage().empty() &&
      !std::equal(layers.begin(), layers.end(), strategy.layers_per_stage().begin(),
                  strategy.layers_per_stage().end()))
    return otherwise("strategy.layers_per_stage");
  if (!strategy.nodes().empty() && order != nodes) return otherwise("strategy.nodes");
  std::vector<int> samples;  // so that each replica keeps the samples that it has buffers of
  if (job.recipe().global_batch() == input.previous.job().recipe().global_batch()) {
    for (const ReplicaPlan& replica : input.previous.replicas())
      samples.push_back(replica.samples());
  }
  return PriceLayout(job, chains, layers, links, {input.start_step, BuffersSince(input, job)},
                     Effort::kThorough, samples, SharesOf(input.previous.deal()));
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
std::string CutOf(const Layout& layout) {
  std::vector<std::string> stages;
  for (const Placement& p : layout.chains) {
    for (size_t s = 0, first = 0; s < p.nodes.size(); first += p.layers[s], ++s) {
      const int begin = static_cast<int>(first);
      stages.push_back(
          absl::StrCat(p.nodes[s]->name(), " (", Layers(begin, begin + p.layers[s]), ")"));
    }
  }
  return absl::StrJoin(stages, ", ");
}

bool SameDaemons(const Plan& previous, const Layout& layout) {
  std::set<std::string> was, is;
  for (const RankPlan& s : previous.ranks()) was.insert(s.node_id());
  for (const NodeInfo* node : layout.nodes()) is.insert(node->id());
  return was == is;
}

// What replicas learn between two agreements depends on what each of them takes: with other shares
// of samples or slices a run would not go on as it was.
bool HoldsShares(const PlannerInput& input, const Layout& best) {
  return input.job.strategy().local_steps() > 1 && input.previous.replicas_size() > 1 &&
         SameDaemons(input.previous, best);
}

// What the comparison rests on: "n1 51.0, n2 12.2 GFLOP/s".
std::string Figures(const Layout& was, const Layout& best) {
  std::map<std::string, double> gflops;
  for (const Layout* layout : {&was, &best}) {
    for (const NodeInfo* n : layout->nodes())
      gflops[n->name()] = n->block_flops() / n->block_forward_s() / 1e9;
  }
  return absl::StrCat(
      absl::StrJoin(gflops, ", ",
                    [](std::string* out, const std::pair<const std::string, double>& g) {
                      absl::StrAppend(out, g.first, " ", absl::StrFormat("%.3g", g.second));
                    }),
      " GFLOP/s");
}

// Shares are held, though the best layout costs so much less.
std::string HeldWords(const Layout& was, const Layout& best) {
  return absl::StrCat(
      ". Its replicas keep their shares, which are part of what is trained, though by the newest "
      "figures of daemons (",
      Figures(was, best), ") and links a step would take ", FormatSeconds(best.step_s), " on ",
      CutOf(best), ": a job file whose strategy.nodes names them in another order shares anew");
}

// The previous placement costs too much against the best one.
std::string TooSlow(const PlannerInput& input, const Layout& was, const Layout& best,
                    double accepted) {
  std::vector<int> layers;
  for (const RankPlan& s : input.previous.ranks()) {
    if (s.replica() == 0) layers.push_back(s.end_layer() - s.first_layer());
  }
  return absl::StrCat(
      "by the newest figures of daemons (", Figures(was, best), ") and links a step would take ",
      FormatSeconds(was.step_s), " there and ", FormatSeconds(best.step_s), " on ", CutOf(best),
      ", ", std::lround(100 * (was.cost_s / best.cost_s - 1)), " % more (up to ",
      std::lround(100 * (accepted - 1)),
      " % are accepted for the states of its codecs). A job file with strategy.nodes: [",
      PreviousNames(input.previous), "] and layers_per_stage: [", absl::StrJoin(layers, ", "),
      "] is held in place whatever is measured");
}

// Those that `auto` had given are priced as if the job named them.
void SayWhoseCodecs(const JobSpec& job, Layout* layout) {
  const auto reword = [](const std::string& wanted, std::string* why) {
    if (wanted == "auto") absl::StrReplaceAll({{" as the job says", " as it had"}}, why);
  };
  for (Placement& p : layout->chains) {
    for (size_t b = 0; b < p.boundaries.size(); ++b) {
      const WantedCodecs wanted = WantedCodecsOf(job, static_cast<int>(b));
      reword(wanted.forward, &p.boundaries[b].forward_why);
      reword(wanted.backward, &p.boundaries[b].backward_why);
    }
  }
}

}  // namespace

// Measurements differ a little each time; what the daemons keep of a job is worth more than that.
void KeepPrevious(const PlannerInput& input, const std::vector<const NodeInfo*>& nodes,
                  const LinkIndex& links, Found* found) {
  if (input.previous.ranks().empty()) return;
  double best_s = found->best.cost_s;
  if (HoldsShares(input, found->best)) {
    const absl::StatusOr<Layout> held = PricePrevious(input, input.job, nodes, links);
    if (held.ok()) best_s = std::max(best_s, held->cost_s);
  }
  std::string why;
  for (const bool codecs : {true, false}) {
    absl::StatusOr<Layout> previous =
        PricePrevious(input, codecs ? WithPreviousCodecs(input) : input.job, nodes, links);
    if (!previous.ok()) {
      why = std::string(previous.status().message());
      continue;
    }
    if (codecs) found->previous_cost_s = previous->cost_s;
    const double accepted = input.follows && codecs                    ? 1
                            : SameDaemons(input.previous, found->best) ? kKeepCut
                                                                       : kKeepPlacement;
    if (previous->cost_s > accepted * best_s) {
      why = TooSlow(input, *previous, found->best, accepted);
      continue;
    }
    found->considered.push_back(absl::StrCat(
        "kept where it was, ", PreviousNames(input.previous),
        codecs ? ", with the codecs it had: " : ": ", FormatSeconds(previous->step_s),
        " a step, and the daemons have the states of its codecs",
        previous->cost_s > accepted * found->best.cost_s ? HeldWords(*previous, found->best) : ""));
    found->best = *std::move(previous);
    if (codecs) SayWhoseCodecs(input.job, &found->best);
    return;
  }
  found->moved_why =
      absl::StrCat("placement changed: the job was on ", CutOf(input.previous), "; ", why);
}

}  // namespace isthmus::coordinator
