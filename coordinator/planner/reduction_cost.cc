#include "coordinator/planner/reduction_cost.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/bucket_choice.h"
#include "coordinator/planner/exchange_time.h"
#include "coordinator/planner/reduced_choice.h"
#include "coordinator/planner/slices.h"
#include "coordinator/planner/step_time.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"
#include "proto/model/stage_shapes.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"

namespace isthmus::coordinator {
namespace {

// Encoded: contributions but the own one, and the own sum. Decoded: the others' contributions to
// the own part, and all sums. About three times all elements with two ranks or more.
constexpr double kPassesOfCodec = 3;

// Do the replicas agree after several steps?
bool Local(const JobSpec& job) { return job.strategy().local_steps() > 1; }

struct Group {
  std::vector<int> ranks;
  int64_t elements = 0;
  int64_t dealt = 0;  // weights of the stage that are dealt to subnetworks
  std::vector<TensorDims> tensors;
  bool tied = false;   // by the codec of compression.tied
  bool coded = true;   // false: as fp32 (compression.gradient_stages)
  int stage = -1;      // of a stage's gradients
  double ahead_s = 0;  // its stage ends so long before the pipeline
  LayerTensors layers;
  double backward_s = 0;  // of its last micro-batch; 0: not reduced in buckets
};

// The last micro-batch's backward pass, on the replica that is fastest.
double LastBackward(const JobSpec& job, const Layout& layout, int stage) {
  if (Overlaps(job) || Local(job)) return 0;
  double fastest_s = std::numeric_limits<double>::infinity();
  const int micro = job.recipe().micro_batch();
  for (int r = 0; r < layout.replicas(); ++r) {
    const int last = (layout.samples[r] - 1) % micro + 1;
    fastest_s = std::min(fastest_s, layout.chains[r].compute[stage].backward_s * last / micro);
  }
  return fastest_s;
}

// What crosses of a group, whole.
double GroupBytes(const Group& group, const CodecSpec& codec) {
  if (!ByMatrix(codec))
    return WireBytes(codec, {1, group.elements / kGradientRow + 1, kGradientRow}, true);
  double bytes = 0;
  for (const TensorDims& d : group.tensors)
    bytes += static_cast<double>(EncodedBytes(d.positions == 1 ? CodecSpec() : codec, d, true));
  return bytes * (1 + kFrameOverheadShare) + kFrameHeaderBytes;
}

// The codec of a group where the stages' gradients go by `gradients`.
CodecSpec CodecOf(const Group& group, const CodecSpec& gradients, const CodecSpec& tied) {
  if (group.tied) return tied;
  return group.coded ? gradients : CodecSpec();
}

// With local steps those of an agreement: the tied embedding's copies at the first and at the last
// stages travel like the other weights.
std::vector<Group> GroupsOf(const JobSpec& job, const Layout& layout) {
  std::vector<Group> groups;
  const int stages = layout.stages();
  const int64_t tied = int64_t{job.model().vocabulary()} * job.model().hidden();
  const bool two_copies = stages > 1 && IsTied(job.model());
  if (two_copies && !Local(job)) {
    groups.emplace_back();
    groups[0].elements = tied;
    groups[0].tied = true;
    groups[0].tensors = {{1, job.model().vocabulary(), job.model().hidden()}};
  }
  for (int r = 0; r < layout.replicas() && !groups.empty(); ++r) {
    groups[0].ranks.push_back(r * stages);
    groups[0].ranks.push_back(r * stages + stages - 1);
  }
  const std::vector<int>& layers = layout.chain().layers;
  for (int s = 0, first = 0; s < stages; first += layers[s], ++s) {
    Group group;
    const int end_layer = first + layers[s];
    const SliceShare slice = layout.slices.empty() ? SliceShare() : layout.chain().slice;
    group.dealt = DealtParameters(job.model(), first, end_layer, slice);
    group.elements = StageCost(job.model(), first, end_layer, 1).parameters - group.dealt;
    const bool end = s == 0 || s + 1 == stages;
    if (two_copies && !Local(job) && end) group.elements -= tied;
    group.layers = StageLayers(job.model(), first, end_layer,
                               [&](int layer) { return slice.Deals(job.model(), layer); });
    group.tensors = AllOf(group.layers);
    group.backward_s = LastBackward(job, layout, s);
    if (two_copies && Local(job) && end)
      group.tensors.push_back({1, job.model().vocabulary(), job.model().hidden()});
    group.coded = CodesGradientsOf(job, s);
    group.stage = s;
    for (int r = 0; r < layout.replicas(); ++r) {
      const Placement& p = layout.chains[r];
      const bool known = !Local(job) && s < static_cast<int>(p.ahead_s.size());
      const double ahead_s = known ? p.ahead_s[s] : 0;
      group.ahead_s = r == 0 ? ahead_s : std::min(group.ahead_s, ahead_s);
      group.ranks.push_back(r * stages + s);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

double RoundTrip(const GroupPair& pair) {
  return std::max(pair.up.round_trip_s, pair.down.round_trip_s);
}

// Both phases of the groups that `counts` says, with the codecs.
double ExchangeSeconds(const Layout& layout, const std::vector<Group>& groups,
                       const CodecSpec& gradients, const CodecSpec& tied,
                       const std::function<bool(const Group&)>& counts) {
  ExchangeTime links(layout);
  double round_trip_s = 0;
  std::map<int, double> codec_s;  // by rank
  for (const GroupPair& pair : layout.pairs) round_trip_s = std::max(round_trip_s, RoundTrip(pair));
  for (const Group& group : groups) {
    if (!counts(group)) continue;
    const CodecSpec codec = CodecOf(group, gradients, tied);
    links.AddReduction(group.ranks, GroupBytes(group, codec));
    const TensorDims dims{1, group.elements / kGradientRow + 1, kGradientRow};
    for (int rank : group.ranks)
      codec_s[rank] += kPassesOfCodec * CodecSeconds(codec, dims) +
                       4 * kTransportSecondsPerByte * GroupBytes(group, codec);
  }
  double slowest_s = 0;
  for (const auto& [rank, seconds] : codec_s) slowest_s = std::max(slowest_s, seconds);
  return 2 * links.Seconds() + round_trip_s + slowest_s;
}

bool OfStages(const Group& group) { return !group.tied; }

// How a stage's gradients are cut, with this codec.
BucketAnswer BucketsOf(const Layout& layout, const Group& group, const CodecSpec& codec) {
  if (group.backward_s == 0) return {};
  ExchangeTime links(layout);
  links.AddReduction(group.ranks, GroupBytes(group, codec));
  BucketQuestion q;
  q.layers = group.layers;
  q.by_matrix = ByMatrix(codec);
  q.contribution_s = links.Seconds();
  q.backward_s = group.backward_s;
  for (const Placement& p : layout.chains) q.step_s = std::max(q.step_s, p.pipeline_s);
  return ChooseBuckets(q);
}

// All groups, from the end of the pipeline on: a stage's group begins when its own backward passes
// end, or with buckets while the last one runs, the tied one when those of all are done.
double ReduceSeconds(const Layout& layout, const std::vector<Group>& groups,
                     const CodecSpec& gradients, const CodecSpec& tied) {
  const auto seconds = [&](const std::function<bool(const Group&)>& counts) {
    return ExchangeSeconds(layout, groups, gradients, tied, counts);
  };
  double slowest_s = 0;
  for (const Group& of : groups) {
    const auto with_it = [&](const Group& g) {
      const bool end = of.stage == 0 || of.stage + 1 == layout.stages();
      return &g == &of || (g.tied && end);
    };
    const double hidden_s =
        of.tied ? 0 : BucketsOf(layout, of, CodecOf(of, gradients, tied)).hidden_s;
    slowest_s = std::max(slowest_s, seconds(with_it) - of.ahead_s - hidden_s);
  }
  return slowest_s;
}

// Down each chain, over to the first one's rank, and back.
double VoteSeconds(const Layout& layout) {
  double slowest_s = 0;
  for (int r = 0; r < layout.replicas(); ++r) {
    double seconds = 0;
    for (const BoundaryChoice& b : layout.chains[r].boundaries)
      seconds += (b.up.round_trip_s + b.down.round_trip_s) / 2;
    for (const GroupPair& pair : layout.pairs) {
      if (r > 0 && pair.lower == 0 && pair.upper == r * layout.stages()) seconds += RoundTrip(pair);
    }
    slowest_s = std::max(slowest_s, seconds);
  }
  return slowest_s;
}

absl::Status FindPairs(const JobSpec& job, const std::vector<Group>& groups, const LinkIndex& links,
                       Layout* layout) {
  const std::vector<const NodeInfo*> nodes = layout->nodes();
  std::map<std::pair<int, int>, bool> wanted;
  const int stages = layout->stages();
  for (int r = 0; r < layout->replicas() && stages > 1 && IsTied(job.model()); ++r)
    wanted[{r * stages, r * stages + stages - 1}] = true;  // the tied embedding of a replica
  for (const Group& group : groups) {
    for (int a : group.ranks) {
      for (int b : group.ranks) {
        if (a < b) wanted[{a, b}] = true;
      }
    }
  }
  for (const auto& entry : wanted) {
    const auto [lower, upper] = entry.first;
    GroupPair pair{lower, upper, links.Get(nodes[lower]->id(), nodes[upper]->id()),
                   links.Get(nodes[upper]->id(), nodes[lower]->id())};
    for (const auto& [link, from, to] :
         {std::tie(pair.up, lower, upper), std::tie(pair.down, upper, lower)}) {
      if (!link.usable)
        return absl::UnavailableError(absl::StrCat("link: ", nodes[from]->name(), " -> ",
                                                   nodes[to]->name(),
                                                   " (replicas agree over it): ", link.why_not));
    }
    layout->pairs.push_back(std::move(pair));
  }
  return absl::OkStatus();
}

// compression.gradient_stages, in words; empty: the job does not say.
std::string StagesWords(const JobSpec& job, const Layout& layout,
                        const std::vector<Group>& groups) {
  const CompressionSpec& c = job.compression();
  if (!c.has_gradient_stages()) return "";
  double ahead_s = 0;
  for (const Group& group : groups) ahead_s = std::max(ahead_s, group.ahead_s);
  const int coded = std::min(c.gradient_stages(), layout.stages());
  return absl::StrCat(
      ", on ", coded, " of ", layout.stages(), " stages (compression.gradient_stages)",
      coded < layout.stages()
          ? absl::StrCat("; the others reduce as fp32, the first of them begin up to ",
                         FormatSeconds(ahead_s), " before the pipeline ends")
          : "");
}

// The codec of gradients as it is used, and why. `gradients_why`: of `auto`; else empty.
void SayGradients(const JobSpec& job, const std::vector<Group>& groups, Layout* layout) {
  const bool by_auto = !layout->gradients_why.empty();
  WithFeedback(&layout->gradients, &layout->gradients_why);
  const std::string some = StagesWords(job, *layout, groups);
  if (layout->gradients_why.empty() && some.empty()) return;
  if (layout->gradients_why.empty()) layout->gradients_why = FormatCodec(layout->gradients);
  const char* each = Local(job) ? "an agreement takes " : "an exchange takes ";
  layout->gradients_why = absl::StrCat(Local(job)     ? "what replicas learnt: "
                                       : Freezes(job) ? "momentum of replicas: "
                                                      : "gradients of replicas: ",
                                       by_auto ? each : "", layout->gradients_why, some);
}

// Of slices that change hands at the end of a round. `merged`: the model comes together at it, and
// all weights are rounded as those that travel.
double SliceSeconds(const Layout& layout, const std::vector<Group>& groups, const CodecSpec& codec,
                    bool merged) {
  if (layout.slices.empty()) return 0;
  ExchangeTime links(layout);
  double codec_s = 0;
  for (const Group& group : groups) {
    if (group.dealt == 0) continue;
    const TensorDims dims{group.dealt / kGradientRow + 1, 1, kGradientRow};
    const double bytes = WireBytes(codec, dims, true);
    links.AddSlices(group.ranks, bytes, merged);
    codec_s = std::max(codec_s, (merged ? 3 : 1) * CodecSeconds(codec, dims) +
                                    2 * kTransportSecondsPerByte * bytes);
  }
  return links.Seconds() + codec_s;
}

// What the agreements of a round take with this codec: of each fragment in turn, or of all.
struct Round {
  double cross_s = 0;  // one of them
  double waits_s = 0;  // of all together, what no step hides
  double whole_s = 0;  // one of all at once; of subnetworks, where the model comes together
};
Round RoundOf(const JobSpec& job, const Layout& layout, const std::vector<Group>& groups,
              const CodecSpec& codec, double step_s) {
  const StrategySpec& s = job.strategy();
  double round_trip_s = 0;
  for (const GroupPair& pair : layout.pairs) round_trip_s = std::max(round_trip_s, RoundTrip(pair));
  const double shared_s = ExchangeSeconds(layout, groups, codec, CodecSpec(), OfStages);
  const double dealt_s = SliceSeconds(layout, groups, codec, false);
  const double merged_s = std::max(dealt_s, SliceSeconds(layout, groups, codec, true));
  const double all_s = shared_s + dealt_s + MergedRounds(job) * (merged_s - dealt_s);
  Round round;
  round.whole_s = shared_s + merged_s;
  round.cross_s = (all_s - round_trip_s) / s.fragments() + round_trip_s;
  const double hidden_s = static_cast<double>(s.fragment_delay()) * step_s;
  round.waits_s = s.fragments() * std::max(0.0, round.cross_s - hidden_s);
  return round;
}

// With local steps: their seconds, and in words.
void PriceAgreements(const JobSpec& job, const std::vector<Group>& groups, double step_s,
                     Layout* layout) {
  const StrategySpec& s = job.strategy();
  const auto between = static_cast<double>(s.local_steps());
  const Round round = RoundOf(job, *layout, groups, layout->gradients, step_s);
  layout->tied = layout->chain().tied;
  layout->tied_why = layout->chain().tied_why;
  layout->agree_s = round.waits_s + s.fragments() * VoteSeconds(*layout);
  layout->longest_agree_s = round.whole_s + VoteSeconds(*layout);
  for (const Placement& p : layout->chains) layout->sync_s = std::max(layout->sync_s, p.sync_s);
  layout->sync_s += layout->agree_s / between;
  layout->reduce_s = layout->agree_s / between;
  const std::string outer = absl::StrCat("(DiLoCo, outer learning rate ", s.outer_learning_rate(),
                                         ", momentum ", s.outer_momentum(), ")");
  const std::string a_step = absl::StrCat(FormatSeconds(layout->agree_s / between), " a step. ");
  if (!layout->slices.empty()) {
    layout->local_why = SubnetworkWords(job, *layout);
    return;
  }
  if (s.fragments() == 1 && s.fragment_delay() == 0) {
    layout->local_why =
        absl::StrCat("local steps: each replica trains by itself, and after ", s.local_steps(),
                     " steps all agree ", outer, ": ", FormatSeconds(layout->agree_s), ", ", a_step,
                     "Checkpoints, validations and stops wait for it");
    return;
  }
  std::string meanwhile;
  if (s.fragment_delay() > 0)
    meanwhile = absl::StrCat(" while up to ", s.fragment_delay(), " steps go on (",
                             FormatSeconds(static_cast<double>(s.fragment_delay()) * step_s),
                             "), after which a replica keeps ", s.fragment_mix(), " of its own");
  layout->local_why = absl::StrCat(
      "streaming local steps: each replica trains by itself, and in ", s.local_steps(),
      " steps all agree ", outer, " on ", s.fragments(),
      s.fragments() == 1 ? " fragment" : " fragments, layers ",
      s.fragments() == 1 ? "" : absl::StrCat(s.fragments(), " apart, one after the other"),
      "; one crosses in ", FormatSeconds(round.cross_s), meanwhile, "; they take ", a_step,
      "Checkpoints, validations and stops are of all at once, at the end of a round");
}

// Sets the buckets of each stage, and says what they hide.
void SetBuckets(const JobSpec& job, const std::vector<Group>& groups, Layout* layout) {
  if (Overlaps(job)) return;
  std::vector<std::string> counts, hidden;
  for (const Group& group : groups) {
    if (group.tied) continue;
    const BucketAnswer answer =
        BucketsOf(*layout, group, CodecOf(group, layout->gradients, layout->tied));
    layout->buckets.push_back(answer.buckets);
    counts.push_back(absl::StrCat(answer.buckets));
    hidden.push_back(FormatSeconds(answer.hidden_s));
  }
  const int most = *std::max_element(layout->buckets.begin(), layout->buckets.end());
  layout->buckets_why =
      most == 1 ? "buckets: the gradients of a stage are reduced as a whole: in parts a step would "
                  "take no less"
                : absl::StrCat("buckets: the gradients of ",
                               counts.size() == 1 ? "the stage" : "the stages", " are reduced in ",
                               absl::StrJoin(counts, ", "), " parts, the last layers first; ",
                               absl::StrJoin(hidden, ", "),
                               " of them cross while the last backward pass computes the layers "
                               "below");
}

}  // namespace

int64_t ReductionBytes(const JobSpec& job, int64_t elements, int replicas) {
  absl::StatusOr<CodecSpec> codec = ParseCodec(job.compression().gradients());
  std::string words;
  if (codec.ok()) WithFeedback(&*codec, &words);
  // Own gradients, the sum and what is encoded; residuals of the contributions and of the own sum.
  int64_t bytes = 4 * (Local(job) ? 6 : 3) * elements;
  for (const int64_t part : {elements, elements / replicas})
    bytes += codec.ok() ? ResidualBytes(*codec, {1, 1, part}, 1) : 4 * part;
  return bytes;
}

int64_t TiedResidualBytes(const JobSpec& job) {
  absl::StatusOr<CodecSpec> codec = ParseCodec(job.compression().tied());
  const TensorDims dims{1, job.model().vocabulary(), job.model().hidden()};
  if (!IsTied(job.model())) return 0;
  if (!codec.ok()) return Freezes(job) ? 4 * dims.elements() : 0;  // auto
  std::string words;
  WithFeedback(&*codec, &words);
  return ResidualBytes(*codec, dims, 1);
}

TiedBytes TiedBytesAt(const JobSpec& job, int replicas, const NodeInfo& node) {
  TiedBytes bytes;
  bytes.exchange =
      IsTied(job.model()) && OnCard(node) && (replicas == 1 || job.strategy().local_steps() > 1);
  const absl::StatusOr<CodecSpec> codec = ParseCodec(job.compression().tied());
  const bool by_matrix = codec.ok() && ByMatrix(*codec);
  const bool there = !OnCard(node) || (bytes.exchange && !by_matrix);
  (there ? bytes.stage : bytes.host) =
      TiedResidualBytes(job) +
      (bytes.exchange ? 2 * 4 * int64_t{job.model().vocabulary()} * job.model().hidden() : 0);
  return bytes;
}

absl::Status PriceReductions(const JobSpec& job, const LinkIndex& links, Layout* layout) {
  const std::vector<Group> groups = GroupsOf(job, *layout);
  RETURN_IF_ERROR(FindPairs(job, groups, links, layout));
  const bool local = Local(job);
  double step_s = 0;
  for (const Placement& p : layout->chains) step_s = std::max(step_s, p.pipeline_s);
  const auto between = static_cast<double>(local ? job.strategy().local_steps() : 1);
  const CodecSpec plain;
  std::vector<Group> stages;  // their groups alone
  std::copy_if(groups.begin(), groups.end(), std::back_inserter(stages), OfStages);
  ASSIGN_OR_RETURN(layout->gradients,
                   ChooseReduced(
                       job, job.compression().gradients(), kFourBitGradientLoss, between * step_s,
                       [&](const CodecSpec& codec) {
                         return local ? RoundOf(job, *layout, groups, codec, step_s).waits_s
                                      : ReduceSeconds(*layout, stages, codec, plain);
                       },
                       &layout->gradients_why));
  SayGradients(job, groups, layout);
  if (local) {
    PriceAgreements(job, groups, step_s, layout);
    return absl::OkStatus();
  }
  if (layout->stages() > 1 && IsTied(job.model())) {
    ASSIGN_OR_RETURN(layout->tied, ChooseReduced(
                                       job, job.compression().tied(), kFourBitTiedLoss, step_s,
                                       [&](const CodecSpec& codec) {
                                         return ExchangeSeconds(
                                             *layout, groups, plain, codec,
                                             [](const Group& g) { return g.tied; });
                                       },
                                       &layout->tied_why));
    WithFeedback(&layout->tied, &layout->tied_why);
    if (!layout->tied_why.empty())
      layout->tied_why = absl::StrCat(
          "tied embedding, over both ends of all replicas: an exchange takes ", layout->tied_why);
  }
  SetBuckets(job, groups, layout);
  layout->reduce_s = ReduceSeconds(*layout, groups, layout->gradients, layout->tied);
  if (Freezes(job))
    layout->warmup_s =
        std::max(0.0, ReduceSeconds(*layout, groups, plain, plain) - layout->reduce_s);
  layout->sync_s = layout->reduce_s + VoteSeconds(*layout);
  double hidden_s = layout->sync_s;
  for (size_t r = 0; r < layout->chains.size(); ++r)
    hidden_s =
        std::min(hidden_s, HiddenSync(ReplicaJob(job, layout->samples[r]), layout->chains[r]));
  layout->sync_s -= hidden_s;
  return absl::OkStatus();
}

}  // namespace isthmus::coordinator
