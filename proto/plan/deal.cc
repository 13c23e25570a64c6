#include "proto/plan/deal.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "proto/job/job_limits.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"

namespace isthmus {
namespace {

constexpr double kSumTolerance = 1e-6;  // of the shares

std::vector<int> AllOf(int n) {
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The part of a permutation of [0, counts' sum) that belongs to `slice`, ascending.
std::vector<int> Part(uint64_t seed, uint64_t stream, const std::vector<int>& counts, int slice) {
  const int all = std::accumulate(counts.begin(), counts.end(), 0);
  std::vector<int> order = AllOf(all);
  for (int i = all - 1; i > 0; --i)
    std::swap(order[i], order[RandomBelow(seed, stream, i, static_cast<uint64_t>(i) + 1)]);
  const auto begin = order.begin() + std::accumulate(counts.begin(), counts.begin() + slice, 0);
  std::vector<int> part(begin, begin + counts[slice]);
  std::sort(part.begin(), part.end());
  return part;
}

std::vector<int> Both(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

int64_t MlpElements(const ModelSpec& model, const Slice& slice) {
  int64_t elements = 0;
  for (int layer = 0; layer < static_cast<int>(slice.size()); ++layer) {
    if (!slice[layer].dealt) continue;
    const int64_t a_unit =
        WidthInto(model, layer) + 1 + (layer + 1 == model.layers() ? model.classes() : 0);
    elements += static_cast<int64_t>(slice[layer].units.size()) * a_unit;
  }
  return elements;
}

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("subnetworks: ", what));
}

}  // namespace

std::vector<int> DealCounts(int all, const std::vector<double>& shares) {
  std::vector<int> counts;
  for (const double share : shares)
    counts.push_back(std::max(1, static_cast<int>(std::floor(share * all))));
  // By how much a slice has less than its share.
  const auto lacks = [&](size_t i) { return shares[i] * all - counts[i]; };
  int left = all - std::accumulate(counts.begin(), counts.end(), 0);
  for (; left != 0; left += left > 0 ? -1 : 1) {
    size_t best = 0;
    for (size_t i = 1; i < counts.size(); ++i) {
      const bool better = left > 0 ? lacks(i) > lacks(best)
                                   : counts[i] > 1 && (counts[best] == 1 || lacks(i) < lacks(best));
      if (better) best = i;
    }
    counts[best] += left > 0 ? 1 : -1;
  }
  return counts;
}

std::vector<double> SharesOf(const DealPlan& deal) {
  return {deal.shares().begin(), deal.shares().end()};
}

bool IsWhole(const DealPlan& deal, const ModelSpec& model, int layer) {
  return layer < deal.whole_layers() || layer >= model.layers() - deal.whole_layers();
}

LayerSlice SliceOfLayer(const DealPlan& deal, const ModelSpec& model, int layer, int64_t round,
                        int slice) {
  if (IsWhole(deal, model, layer)) return {false, AllOf(HeadsOf(model)), AllOf(UnitsOf(model))};
  const std::vector<double> shares = SharesOf(deal);
  const auto stream = [&](uint64_t what) {
    return RandomBits(static_cast<uint64_t>(round), static_cast<uint64_t>(layer), what);
  };
  LayerSlice held;
  held.dealt = true;
  if (HeadsOf(model) > 0)
    held.heads = Part(deal.seed(), stream(1), DealCounts(HeadsOf(model), shares), slice);
  held.units = Part(deal.seed(), stream(2), DealCounts(UnitsOf(model), shares), slice);
  return held;
}

Slice SliceOf(const Plan& plan, int rank, int64_t round) {
  const RankPlan& r = plan.ranks(rank);
  Slice slice;
  for (int layer = r.first_layer(); layer < r.end_layer(); ++layer)
    slice.push_back(SliceOfLayer(plan.deal(), plan.job().model(), layer, round,
                                 plan.replicas(r.replica()).slice()));
  return slice;
}

Slice WholeOf(const Plan& plan, int rank) {
  const ModelSpec& model = plan.job().model();
  const RankPlan& r = plan.ranks(rank);
  Slice slice;
  for (int layer = r.first_layer(); layer < r.end_layer(); ++layer)
    slice.push_back(
        {!IsWhole(plan.deal(), model, layer), AllOf(HeadsOf(model)), AllOf(UnitsOf(model))});
  return slice;
}

Slice Common(const Slice& a, const Slice& b) {
  Slice common(a.size());
  for (size_t l = 0; l < a.size(); ++l) {
    if (!a[l].dealt) continue;
    common[l] = {true, Both(a[l].heads, b[l].heads), Both(a[l].units, b[l].units)};
  }
  return common;
}

int64_t SliceElements(const ModelSpec& model, const Slice& slice) {
  if (IsMlp(model)) return MlpElements(model, slice);
  const int64_t hidden = model.hidden(), width = hidden / model.heads();
  int64_t elements = 0;
  for (const LayerSlice& layer : slice) {
    if (!layer.dealt) continue;
    elements += static_cast<int64_t>(layer.heads.size()) * (4 * hidden * width + 3 * width);
    elements += static_cast<int64_t>(layer.units.size()) * (2 * hidden + 1);
  }
  return elements;
}

int64_t RoundOf(const Plan& plan, int64_t step) {
  return step / plan.job().strategy().local_steps();
}

bool Gathers(const Plan& plan, int rank) { return plan.ranks(rank).replica() == 0; }

Slice Moves(const Plan& plan, int from, int to, int64_t step, bool merged) {
  const int64_t round = RoundOf(plan, step);
  const bool all = merged && Gathers(plan, to);
  if (!all && step + 1 >= plan.job().recipe().steps()) return Slice(WholeOf(plan, to).size());
  return Common(SliceOf(plan, from, round), all ? WholeOf(plan, to) : SliceOf(plan, to, round + 1));
}

int64_t SliceRows(const Plan& plan, const Slice& slice) {
  return (SliceElements(plan.job().model(), slice) + kSliceRow - 1) / kSliceRow;
}

TensorDims SliceDims(const Plan& plan, int from, int to, int64_t step, bool merged) {
  return {SliceRows(plan, Moves(plan, from, to, step, merged)), 1, kSliceRow};
}

bool CarriesWeights(const CodecSpec& codec) {
  return codec.kind() == CodecSpec::NONE || codec.kind() == CodecSpec::BF16 ||
         codec.kind() == CodecSpec::FP16;
}

void AddSliceGroups(const CodecSpec& codec, Plan* plan) {
  for (int s = 0; s < StagesOf(*plan); ++s) {
    const std::vector<int> ranks = RanksOfStage(*plan, s);
    int64_t rows = 0;
    for (const int r : ranks) rows = std::max(rows, SliceRows(*plan, SliceOf(*plan, r, 0)));
    if (rows == 0) continue;  // all of its layers are whole
    GroupPlan* group = plan->add_groups();
    group->set_id(absl::StrCat("slices ", s));
    group->mutable_ranks()->Add(ranks.begin(), ranks.end());
    group->set_value(GroupPlan::SLICE);
    group->set_tensors(GroupPlan::OWN);
    group->set_rows(rows);
    group->set_width(kSliceRow);
    *group->mutable_contribution() = codec;
  }
}

absl::Status CheckDeal(const Plan& plan) {
  if (!Deals(plan)) return absl::OkStatus();
  const ModelSpec& model = plan.job().model();
  const StrategySpec& strategy = plan.job().strategy();
  const DealPlan& deal = plan.deal();
  if (!MakesLocalSteps(plan)) return Wrong("they need several replicas and local steps");
  if (deal.blocks()) return Wrong("whole layers can't be dealt");
  if (Streams(plan)) return Wrong("they can't be agreed on in fragments");
  if (Overlaps(plan.job())) return Wrong("their steps can't overlap");
  if (plan.job().recipe().optimizer() == kQuantizedAdam)
    return Wrong("their optimiser can't be quantized_adam");
  // Units are numbered in int, and permutations of them are drawn for each layer and round.
  if (model.heads() < 1 || model.heads() > kMaxHeads || model.hidden() > kMaxHidden ||
      model.hidden() % model.heads() != 0)
    return Wrong(absl::StrCat(model.heads(), " heads for a width of ", model.hidden(),
                              " (model.heads, model.hidden)"));
  const int slices = deal.shares_size();
  if (slices != plan.replicas_size())
    return Wrong(absl::StrCat(slices, " slices for ", plan.replicas_size(), " replicas"));
  if (!IsMlp(model) && slices > model.heads())
    return Wrong(
        absl::StrCat(slices, " slices, and a layer has ", model.heads(), " heads (model.heads)"));
  if (IsMlp(model) && slices > model.hidden())
    return Wrong(
        absl::StrCat(slices, " slices, and a layer has ", model.hidden(), " units (model.hidden)"));
  if (IsMlp(model) && (StagesOf(plan) != 1 || deal.whole_layers() != 0))
    return Wrong("an MLP's replicas are one stage each, and all of its layers are dealt");
  if (deal.whole_layers() < 0 || 2 * int64_t{deal.whole_layers()} >= model.layers())
    return Wrong(absl::StrCat(deal.whole_layers(), " first and last layers are whole of ",
                              model.layers(), ": none is left to deal"));
  double sum = 0;
  for (const double share : deal.shares()) {
    if (!(share > 0)) return Wrong("a slice has no share");
    sum += share;
  }
  if (!(std::abs(sum - 1) < kSumTolerance)) return Wrong("their shares are not 1 together");
  std::vector<bool> held(slices);
  for (const ReplicaPlan& replica : plan.replicas()) {
    if (replica.slice() < 0 || replica.slice() >= slices || held[replica.slice()])
      return Wrong(absl::StrCat("slice ", replica.slice(), " is not one of a replica's own"));
    held[replica.slice()] = true;
  }
  for (const GroupPlan& group : plan.groups()) {
    if (group.value() == GroupPlan::SLICE && !CarriesWeights(group.contribution()))
      return Wrong("the codec of their weights loses too much of them");
  }
  return strategy.local_steps() > 1 ? absl::OkStatus() : Wrong("a round has no steps");
}

absl::Status CheckSliceGroup(const Plan& plan, const GroupPlan& group) {
  if (!Deals(plan))
    return Wrong("its ranks hand each other slices, and the job has no subnetworks");
  RETURN_IF_ERROR(CheckDeal(plan));
  int64_t rows = 0;
  const RankPlan& first = plan.ranks(group.ranks(0));
  for (const int r : group.ranks()) {
    const RankPlan& rank = plan.ranks(r);
    if (rank.replica() < 0 || rank.replica() >= plan.replicas_size())
      return Wrong(absl::StrCat("rank ", r, " is of replica ", rank.replica(), ", the plan has ",
                                plan.replicas_size()));
    if (rank.first_layer() < 0 || rank.end_layer() > plan.job().model().layers())
      return Wrong(absl::StrCat("rank ", r, " holds layers ", rank.first_layer(), " to ",
                                rank.end_layer(), " of ", plan.job().model().layers()));
    if (rank.first_layer() != first.first_layer() || rank.end_layer() != first.end_layer())
      return Wrong(absl::StrCat("rank ", r, " holds layers ", rank.first_layer(), " to ",
                                rank.end_layer(), ", and rank ", group.ranks(0), ", with which ",
                                "it shares them, ", first.first_layer(), " to ",
                                first.end_layer()));
    rows = std::max(rows, SliceRows(plan, SliceOf(plan, r, 0)));
  }
  if (group.width() != kSliceRow || group.rows() != rows)
    return Wrong(absl::StrCat("frames of ", group.rows(), " x ", group.width(),
                              " weights; the largest slice makes ", rows, " x ", kSliceRow));
  return absl::OkStatus();
}

}  // namespace isthmus
