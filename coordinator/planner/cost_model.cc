#include "coordinator/planner/cost_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/number_text.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "proto/model/model_cost.h"
#include "proto/plan/link_bounds.h"
#include "proto/plan/overlap.h"

namespace isthmus::coordinator {
namespace {

// Seconds a floating-point operation, in each pass. The reference block's backward pass is twice
// its forward pass in operations.
double ForwardSecondsPerFlop(const NodeInfo& node) {
  return node.block_forward_s() / node.block_flops();
}
double BackwardSecondsPerFlop(const NodeInfo& node) {
  return node.block_backward_s() / (2 * node.block_flops());
}

StageSeconds SecondsOf(const PartCost& cost, const NodeInfo& node) {
  const double forward = ForwardSecondsPerFlop(node);
  return {cost.forward_flops * forward,
          cost.recomputed_flops * forward + cost.backward_flops * BackwardSecondsPerFlop(node)};
}

JobSpec Recomputing(JobSpec job) {
  job.mutable_recipe()->set_recompute(true);
  return job;
}

int MaxLayersInMemory(const JobSpec& job, int stages, int stage, const NodeInfo& node,
                      const SliceShare& slice) {
  const int layers = job.model().layers();
  // First and last stage hold more than blocks; any others are alike, so layer numbers in the
  // middle do.
  auto fits = [&](int n) {
    const int first = stage == 0 ? 0 : stage == stages - 1 ? layers - n : 1;
    const int end = stage == stages - 1 ? layers : first + n;
    return StageBytes(job, stages, stage, first, end, node, slice) <= StageRoom(node);
  };
  const int most = layers - stages + 1;
  int low = 0, high = most;  // fits(low) holds or low is 0
  while (low < high) {
    const int mid = (low + high + 1) / 2;
    if (fits(mid)) {
      low = mid;
    } else {
      high = mid - 1;
    }
  }
  return low;
}

// Of a stage with layers [first, end).
absl::Status TooLittleMemory(const JobSpec& job, int stages, int stage, int first, int end,
                             const NodeInfo& node, const SliceShare& slice) {
  const auto bytes = [&](const JobSpec& how) {
    return StageBytes(how, stages, stage, first, end, node, slice);
  };
  const int64_t need = bytes(job), less = bytes(Recomputing(job));
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: stage ", stage, " with ", end - first, end - first == 1 ? " layer" : " layers",
      " needs ", FormatBytes(need), " (", need, " bytes) on daemon ", node.name(),
      ", which may use ", RoomWords(node), " (", StageRoom(node), " bytes)",
      less <= StageRoom(node) && need > StageRoom(node)
          ? absl::StrCat("; with recipe.recompute it would need ", FormatBytes(less))
          : ""));
}

// How many blocks a stage can hold, and how long they take: base_s (embedding, head) + n x block_s.
struct StageRange {
  double base_s = 0, block_s = 0;
  int most = 0;
  double seconds(int n) const { return base_s + n * block_s; }
  int within(
      double bound) const {  // blocks that take no longer than `bound`; the nudge is for rounding
    return static_cast<int>(
        std::min<double>(most, std::floor((bound - base_s) / block_s * (1 + 1e-12) + 1e-9)));
  }
};

// ResourceExhausted: not even so do they hold the model.
absl::StatusOr<std::vector<StageRange>> StageRanges(const JobSpec& job,
                                                    const std::vector<const NodeInfo*>& nodes,
                                                    const SliceShare& slice) {
  const int stages = nodes.size(), layers = job.model().layers();
  const PartCost block =
      BlockCost(job.model(), job.recipe().micro_batch(), slice.share, job.recipe().recompute());
  std::vector<StageRange> ranges(stages);
  int64_t room = 0, have = 0, need = 0;
  std::string names;
  for (int s = 0, even_first = 0; s < stages; ++s) {
    const NodeInfo& node = *nodes[s];
    StageRange& r = ranges[s];
    r.block_s = SecondsOf(block, node).sum();
    const int first = s == 0 ? 0 : layers - 1, end = s == stages - 1 ? layers : 1;
    if (s == 0 || s == stages - 1) {
      r.base_s =
          std::max(0.0, StageTime(job, node, first, end, slice).sum() - (end - first) * r.block_s);
    }
    r.most = MaxLayersInMemory(job, stages, s, node, slice);
    if (r.most < 1) {
      const int at = s == 0 ? 0 : s == stages - 1 ? layers - 1 : 1;
      return TooLittleMemory(job, stages, s, at, stages == 1 ? layers : at + 1, node, slice);
    }
    room += r.most;
    have += StageRoom(node);
    const int even = layers / stages + (s < layers % stages);  // an even cut, to have a figure
    need += StageBytes(job, stages, s, even_first, even_first + even, node, slice);
    even_first += even;
    absl::StrAppend(&names, s == 0 ? "" : ", ", node.name(), " holds at most ", r.most);
  }
  if (room >= layers) return ranges;
  return absl::ResourceExhaustedError(
      absl::StrCat("memory: ", CountText(layers, "layer"), " on ", CountText(stages, "daemon"),
                   layers == 1 ? " needs" : " need", " about ", FormatBytes(need), " (", need,
                   " bytes); there are ", FormatBytes(have), " (", have, " bytes): ", names,
                   !job.recipe().recompute() && StageRanges(Recomputing(job), nodes, slice).ok()
                       ? "; with recipe.recompute they would hold them"
                       : ""));
}

}  // namespace

int Micros(const JobSpec& job) {
  return static_cast<int>((job.recipe().global_batch() + job.recipe().micro_batch() - 1) /
                          job.recipe().micro_batch());
}

int MicrosInFlight(const std::string& schedule, int stages, int stage, int micros) {
  return schedule == "gpipe" ? micros : std::min(micros, stages - stage);
}

bool HasCompute(const NodeInfo& node) {
  return node.block_flops() > 0 && node.block_forward_s() > 0 && node.block_backward_s() > 0;
}

StageSeconds StageTime(const JobSpec& job, const NodeInfo& node, int first_layer, int end_layer,
                       const SliceShare& slice) {
  return SecondsOf(StageCost(job.model(), first_layer, end_layer, job.recipe().micro_batch(), slice,
                             job.recipe().recompute()),
                   node);
}

std::string RoomWords(const NodeInfo& node) {
  return absl::StrCat(FormatBytes(StageRoom(node)), OnCard(node) ? " of its card" : "");
}

int64_t TrainedBytes(const JobSpec& job, int first_layer, int end_layer, const NodeInfo& node,
                     int micros_in_flight, const SliceShare& slice) {
  const RecipeSpec& r = job.recipe();
  return OnCard(node)
             ? CardMemoryBytes(job.model(), r.precision() == "bf16", first_layer, end_layer,
                               r.micro_batch(), micros_in_flight, slice, r.recompute())
             : StageMemoryBytes(job.model(), first_layer, end_layer, r.micro_batch(),
                                micros_in_flight, slice, r.recompute());
}

int64_t StageBytes(const JobSpec& job, int stages, int stage, int first_layer, int end_layer,
                   const NodeInfo& node, const SliceShare& slice) {
  const int in_flight = MicrosInFlight(job.strategy().schedule(), stages, stage, Micros(job));
  const int edges = (stage > 0) + (stage + 1 < stages);
  const int64_t held =
      std::min(job.strategy().queue_limit(), Micros(job));  // in each direction of each edge
  // Two more copies of the weights, and a second one of the gradients.
  const int64_t second =
      Overlaps(job) ? 3 * StageCost(job.model(), first_layer, end_layer, 1).parameter_bytes() : 0;
  return kProcessBytes + second +
         TrainedBytes(job, first_layer, end_layer, node, in_flight, slice) +
         2 * edges * held * 4 * BoundaryElements(job.model(), job.recipe().micro_batch());
}

absl::Status CheckMemory(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                         const std::vector<int>& layers, const SliceShare& slice) {
  const int stages = nodes.size();
  int first = 0;
  for (int s = 0; s < stages; first += layers[s], ++s) {
    const int end = first + layers[s];
    if (StageBytes(job, stages, s, first, end, *nodes[s], slice) > StageRoom(*nodes[s]))
      return TooLittleMemory(job, stages, s, first, end, *nodes[s], slice);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> BalanceLayers(const JobSpec& job,
                                               const std::vector<const NodeInfo*>& nodes,
                                               const SliceShare& slice) {
  const int layers = job.model().layers();
  ASSIGN_OR_RETURN(const std::vector<StageRange> ranges, StageRanges(job, nodes, slice));
  // The smallest bound at which every stage can hold enough layers within it; candidates are the
  // times themselves.
  std::vector<double> candidates;
  for (const StageRange& r : ranges) {
    for (int n = 1; n <= r.most; ++n) candidates.push_back(r.seconds(n));
  }
  std::sort(candidates.begin(), candidates.end());
  auto enough = [&](double bound) {
    int64_t sum = 0;
    for (const StageRange& r : ranges) {
      if (r.within(bound) < 1) return false;
      sum += r.within(bound);
    }
    return sum >= layers;
  };
  const double bound = *std::partition_point(candidates.begin(), candidates.end() - 1,
                                             [&](double t) { return !enough(t); });
  std::vector<int> n;
  int surplus = -layers;
  for (const StageRange& r : ranges) surplus += n.emplace_back(std::max(1, r.within(bound)));
  for (; surplus > 0; --surplus) {  // relieve the slowest
    int slowest = -1;
    for (int s = 0; s < static_cast<int>(n.size()); ++s) {
      if (n[s] > 1 &&
          (slowest < 0 || ranges[s].seconds(n[s]) > ranges[slowest].seconds(n[slowest])))
        slowest = s;
    }
    --n[slowest];
  }
  return n;
}

double WireBytes(const CodecSpec& codec, const TensorDims& dims, bool warm) {
  return EncodedBytes(codec, dims, warm) * (1 + kFrameOverheadShare) + kFrameHeaderBytes;
}

double MeanWireBytes(const CodecSpec& codec, const TensorDims& dims, double first_visits) {
  return first_visits * WireBytes(codec, dims, false) +
         (1 - first_visits) * WireBytes(codec, dims, true);
}

double FirstVisits(const JobSpec& job, const DataSize& data, const Remaining& remaining) {
  if (!data.known) return 1;
  const int64_t batch = job.recipe().global_batch();
  const int64_t pass = std::max<int64_t>(1, data.train_samples / batch);  // steps
  const int64_t from = remaining.buffers_since, to = remaining.start_step;
  int64_t kept = 0;  // steps with samples of their own
  if (from >= 0 && from < to) {
    const int64_t next = (from / pass + 1) * pass;
    kept = to <= next ? to - from : std::max(next - from, std::min(pass, to - next));
  }
  const double fresh = static_cast<double>(data.train_samples - std::min(pass, kept) * batch);
  const double visits = static_cast<double>((job.recipe().steps() - to) * batch);
  return visits > 0 ? std::clamp(fresh / visits, 0.0, 1.0) : 1;
}

std::string VisitWords(const CodecSpec& codec, const TensorDims& dims, double first_visits) {
  return absl::StrCat(FormatBytes(EncodedBytes(codec, dims, false)), " on a first visit, ",
                      FormatBytes(EncodedBytes(codec, dims, true)), " after; ",
                      FormatShare(first_visits), " of visits are first ones");
}

LinkIndex::LinkIndex(const Topology& topology) {
  missing_.why_not = "not measured yet";
  for (const LinkMeasurement& m : topology.links()) {
    Link& link = links_[{m.from_id(), m.to_id()}];
    link.dials = m.error().empty();
    link.usable = std::isfinite(m.rate_bits_per_s()) && m.rate_bits_per_s() > 0 &&
                  std::isfinite(m.round_trip_s()) && m.round_trip_s() >= 0;
    link.rate_bits_per_s = m.rate_bits_per_s();
    link.round_trip_s = m.round_trip_s();
    link.loss = m.loss();
    link.connections = std::clamp(m.connections(), 1, kMaxConnections);
    link.why_not = !m.error().empty() ? m.error() : link.usable ? "" : "its measurement is broken";
  }
  for (auto& [pair, link] : links_) {  // a rate of both ends of which none can dial is of no use
    link.usable = link.usable && (link.dials || Get(pair.second, pair.first).dials);
  }
}

const LinkIndex::Link& LinkIndex::Get(const std::string& from_id, const std::string& to_id) const {
  auto it = links_.find({from_id, to_id});
  return it == links_.end() ? missing_ : it->second;
}

}  // namespace isthmus::coordinator
