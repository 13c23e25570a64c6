#include "coordinator/planner/layout.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_text.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/pricing.h"
#include "coordinator/planner/reduction_cost.h"
#include "coordinator/planner/slices.h"
#include "proto/job/subnetworks.h"

namespace isthmus::coordinator {
namespace {

constexpr int64_t kAnyMemory = int64_t{1} << 60;

// What the daemons of one stage are together: as fast as their mean, with the least memory.
NodeInfo Together(const std::vector<const NodeInfo*>& nodes) {
  NodeInfo mean = *nodes.front();
  double forward = 0, backward = 0;  // operations a second
  for (const NodeInfo* node : nodes) {
    forward += node->block_flops() / node->block_forward_s();
    backward += node->block_flops() / node->block_backward_s();
    mean.set_memory_bytes(std::min(mean.memory_bytes(), node->memory_bytes()));
    // 0 where one of them is on a CPU: then all count as such.
    mean.set_device_memory_bytes(std::min(mean.device_memory_bytes(), node->device_memory_bytes()));
  }
  const auto n = static_cast<double>(nodes.size());
  mean.set_block_forward_s(mean.block_flops() * n / forward);
  mean.set_block_backward_s(mean.block_flops() * n / backward);
  return mean;
}

// The first replica holds the whole model now and then: that with the most room does.
void MostRoomFirst(NodeChains* chains) {
  const auto room = [](const std::vector<const NodeInfo*>& chain) {
    int64_t least = kAnyMemory;
    for (const NodeInfo* node : chain) least = std::min(least, StageRoom(*node));
    return least;
  };
  std::stable_sort(chains->begin(), chains->end(),
                   [&](const auto& a, const auto& b) { return room(a) > room(b); });
}

absl::StatusOr<std::vector<int>> SharedCut(const JobSpec& job, const NodeChains& chains) {
  std::vector<NodeInfo> stages;
  for (size_t s = 0; s < chains[0].size(); ++s) {
    std::vector<const NodeInfo*> nodes;
    for (const auto& chain : chains) nodes.push_back(chain[s]);
    stages.push_back(Together(nodes));
  }
  std::vector<const NodeInfo*> pointers;
  for (const NodeInfo& stage : stages) pointers.push_back(&stage);
  SliceShare slice;
  if (TrainsSubnetworks(job)) {
    // Slices are cut to the memory of each replica afterwards (ShareSlices).
    for (NodeInfo& stage : stages) {
      stage.set_memory_bytes(kAnyMemory);
      if (stage.device_memory_bytes() > 0) stage.set_device_memory_bytes(kAnyMemory);
    }
    slice = SliceFor(job, 0, 1.0 / static_cast<double>(chains.size()));
  }
  return CutLayers(job, static_cast<int>(chains.size()), pointers, slice);
}

absl::Status CheckNodes(const JobSpec& job, const NodeChains& chains) {
  const NodeInfo& root = *chains[0].front();
  for (const auto& chain : chains) {
    for (const NodeInfo* node : chain) {
      if (!HasCompute(*node))
        return absl::FailedPreconditionError(
            absl::StrCat("daemon ", node->name(), " has not measured its compute"));
    }
    RETURN_IF_ERROR(CountSamples(job, *chain.front()).status());
    RETURN_IF_ERROR(SameData(job, root, *chain.front()));
  }
  return absl::OkStatus();
}

// Seconds that one more micro-batch takes on the slowest part of a chain.
double MicroSeconds(const Placement& p) {
  double slowest = p.slowest_s;
  for (const BoundaryChoice& b : p.boundaries)
    slowest = std::max({slowest, b.up_s, b.down_s, b.forward_codec_s, b.backward_codec_s});
  return slowest;
}

absl::StatusOr<std::vector<Placement>> PriceChains(const JobSpec& job, const NodeChains& nodes,
                                                   const std::vector<int>& samples,
                                                   const std::vector<int>& layers,
                                                   const std::vector<double>& slices,
                                                   const LinkIndex& links,
                                                   const Remaining& remaining, Effort effort) {
  std::vector<Placement> chains;
  for (size_t r = 0; r < nodes.size(); ++r) {
    ReplicaShare share;
    share.samples = samples[r];
    share.replicas = static_cast<int>(nodes.size());
    if (!slices.empty()) share.slice = SliceIn(job, static_cast<int>(r), slices);
    ASSIGN_OR_RETURN(Placement p,
                     PricePlacement(job, nodes[r], layers, links, remaining, effort, share));
    chains.push_back(std::move(p));
  }
  return chains;
}

void Deal(const JobSpec& job, const std::vector<Placement>& chains, std::vector<int>* samples) {
  std::vector<double> micro_s, extra_s;
  for (size_t r = 0; r < chains.size(); ++r) {
    const int micros = Micros(ReplicaJob(job, (*samples)[r]));
    micro_s.push_back(MicroSeconds(chains[r]));
    extra_s.push_back(std::max(0.0, chains[r].pipeline_s - micros * micro_s.back()));
  }
  *samples = DealSamples(job.recipe().global_batch(), job.recipe().micro_batch(), micro_s, extra_s);
}

std::string SharesWhy(const JobSpec& job, const Layout& layout) {
  std::vector<std::string> shares;
  for (int r = 0; r < layout.replicas(); ++r)
    shares.push_back(absl::StrCat(
        layout.samples[r], " (", FormatSeconds(MicroSeconds(layout.chains[r])), " a micro-batch)"));
  return absl::StrCat("replicas: of the ", job.recipe().global_batch(),
                      " samples of a step they take ", absl::StrJoin(shares, ", "),
                      ", so that all end at about the same time; a sample stays with its replica");
}

void Sum(Layout* layout) {
  double first_s = 0, again_s = 0;
  for (const Placement& p : layout->chains) {
    const double after_s = p.sync_s + p.optimizer_s;
    layout->pipeline_s = std::max(layout->pipeline_s, p.pipeline_s);
    layout->optimizer_s = std::max(layout->optimizer_s, p.optimizer_s);
    layout->loss = std::max(layout->loss, p.loss);
    layout->price = std::max(layout->price, p.price);
    first_s = std::max(first_s, p.first_step_s - after_s);
    again_s = std::max(again_s, p.again_step_s - after_s);
  }
  const double after_s = layout->sync_s + layout->optimizer_s;
  layout->step_s = layout->pipeline_s + after_s;
  layout->first_step_s = first_s + after_s;
  layout->again_step_s = again_s + after_s;
  layout->cost_s = layout->step_s * (1 + layout->price);
}

Layout Alone(const JobSpec& job, Placement p) {
  Layout layout;
  layout.samples = {job.recipe().global_batch()};
  layout.tied = p.tied;
  layout.tied_why = p.tied_why;
  layout.sync_s = p.sync_s;
  layout.reduce_s = p.tied_s;
  layout.chains.push_back(std::move(p));
  Sum(&layout);
  return layout;
}

}  // namespace

NodeChains ChainsOf(const Layout& layout) {
  NodeChains chains;
  for (const Placement& p : layout.chains) chains.push_back(p.nodes);
  return chains;
}

std::vector<const NodeInfo*> Layout::nodes() const {
  std::vector<const NodeInfo*> all;
  for (const Placement& p : chains) all.insert(all.end(), p.nodes.begin(), p.nodes.end());
  return all;
}

JobSpec ReplicaJob(const JobSpec& job, int samples) {
  JobSpec mine = job;
  mine.mutable_recipe()->set_global_batch(samples);
  return mine;
}

std::vector<int> DealSamples(int batch, int micro_batch, const std::vector<double>& micro_s,
                             const std::vector<double>& extra_s) {
  const int replicas = static_cast<int>(micro_s.size());
  // With fewer micro-batches than replicas the last ones are cut into samples.
  const int unit = batch / micro_batch >= replicas ? micro_batch : 1;
  std::vector<int> samples(replicas, unit);
  const auto ends_s = [&](int r, int more) {
    return extra_s[r] + micro_s[r] * static_cast<double>(samples[r] + more) / micro_batch;
  };
  for (int left = batch - replicas * unit; left > 0;) {
    const int next = std::min(unit, left);
    int soonest = 0;
    for (int r = 1; r < replicas; ++r) {
      if (ends_s(r, next) < ends_s(soonest, next)) soonest = r;
    }
    samples[soonest] += next;
    left -= next;
  }
  return samples;
}

std::string NamesOf(const Layout& layout) {
  return absl::StrJoin(layout.chains, " | ", [](std::string* out, const Placement& p) {
    absl::StrAppend(out, absl::StrJoin(p.nodes, ", ", [](std::string* o, const NodeInfo* n) {
                      absl::StrAppend(o, n->name());
                    }));
  });
}

absl::StatusOr<Layout> PriceLayout(const JobSpec& job, const NodeChains& chosen,
                                   const std::vector<int>& layers, const LinkIndex& links,
                                   const Remaining& remaining, Effort effort,
                                   const std::vector<int>& samples,
                                   const std::vector<double>& slices) {
  for (const auto& chain : chosen) {
    if (layers.empty() || layers.size() == chain.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("strategy.layers_per_stage: ", layers.size(), " stages, for a chain of ",
                     CountText(static_cast<int64_t>(chain.size()), "daemon")));
  }
  NodeChains nodes = chosen;
  const bool as_given = !job.strategy().nodes().empty() || !samples.empty() || !slices.empty();
  if (TrainsSubnetworks(job) && !as_given) MostRoomFirst(&nodes);
  const int replicas = static_cast<int>(nodes.size());
  if (replicas == 1) {
    ASSIGN_OR_RETURN(Placement p, PricePlacement(job, nodes[0], layers, links, remaining, effort));
    return Alone(job, std::move(p));
  }
  if (job.recipe().global_batch() < replicas) {
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy.replicas: ", replicas, " replicas, and a batch has ", job.recipe().global_batch(),
        " samples (recipe.global_batch): each replica takes at least one"));
  }
  RETURN_IF_ERROR(CheckNodes(job, nodes));
  std::vector<int> cut = layers;
  if (cut.empty()) {
    ASSIGN_OR_RETURN(cut, SharedCut(job, nodes));
  }
  Layout layout;
  if (TrainsSubnetworks(job)) {
    layout.slices = slices;
    if (slices.size() != nodes.size()) {
      ASSIGN_OR_RETURN(layout.slices, ShareSlices(job, nodes, cut));
    }
  }
  layout.samples = samples;
  if (samples.empty()) {
    layout.samples =
        DealSamples(job.recipe().global_batch(), job.recipe().micro_batch(),
                    std::vector<double>(replicas, 1), std::vector<double>(replicas, 0));
    ASSIGN_OR_RETURN(layout.chains, PriceChains(job, nodes, layout.samples, cut, layout.slices,
                                                links, remaining, Effort::kQuick));
    Deal(job, layout.chains, &layout.samples);
  }
  ASSIGN_OR_RETURN(layout.chains, PriceChains(job, nodes, layout.samples, cut, layout.slices, links,
                                              remaining, effort));
  RETURN_IF_ERROR(PriceReductions(job, links, &layout));
  Sum(&layout);
  if (effort == Effort::kThorough) layout.shares_why = SharesWhy(job, layout);
  return layout;
}

}  // namespace isthmus::coordinator
