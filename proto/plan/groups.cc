#include "proto/plan/groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/model_cost.h"
#include "proto/model/stage_shapes.h"
#include "proto/plan/agreements.h"
#include "proto/plan/deal.h"
#include "proto/plan/parts.h"

namespace isthmus {

bool Embeds(const Plan& plan, int rank) { return plan.ranks(rank).first_layer() == 0; }

bool HasHead(const Plan& plan, int rank) {
  return plan.ranks(rank).end_layer() == plan.job().model().layers();
}

bool HoldsTied(const Plan& plan, int rank) {
  return IsTied(plan.job().model()) && Embeds(plan, rank) != HasHead(plan, rank);
}

int StagesOf(const Plan& plan) {
  int stages = 0;
  for (const RankPlan& rank : plan.ranks()) stages = std::max(stages, rank.stage() + 1);
  return stages;
}

bool StandsForStage(const Plan& plan, int rank) {
  const auto& ranks = plan.ranks();
  return std::none_of(ranks.begin(), ranks.begin() + rank,
                      [&](const RankPlan& other) { return other.stage() == ranks[rank].stage(); });
}

bool PutsParts(const Plan& plan, int rank) {
  return MakesLocalSteps(plan) || StandsForStage(plan, rank);
}

int PuttingReplicas(const Plan& plan) { return MakesLocalSteps(plan) ? plan.replicas_size() : 1; }

std::string ShapeWords(int replicas, int stages) {
  return absl::StrCat(replicas > 1 ? absl::StrCat(replicas, " replicas x ") : "", stages,
                      stages == 1 ? " stage" : " stages");
}

std::string ShapeWords(const Plan& plan) {
  return ShapeWords(plan.replicas_size(), StagesOf(plan));
}

std::string StageWords(const Plan& plan, int rank) {
  const RankPlan& r = plan.ranks(rank);
  return absl::StrCat("stage ", r.stage(), plan.replicas_size() > 1 ? " of replica " : "",
                      plan.replicas_size() > 1 ? absl::StrCat(r.replica()) : "");
}

int64_t OwnElements(const Plan& plan, int rank) {
  const ModelSpec& model = plan.job().model();
  const RankPlan& r = plan.ranks(rank);
  int64_t elements = StageCost(model, r.first_layer(), r.end_layer(), 1).parameters;
  if (Deals(plan)) elements -= SliceElements(model, WholeOf(plan, rank));
  if (HoldsTied(plan, rank)) elements -= int64_t{model.vocabulary()} * model.hidden();
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() != LinkPlan::BOUNDARY || (link.lower() != rank && link.upper() != rank))
      continue;
    if (link.forward().kind() == CodecSpec::AUTOENCODER)
      elements += int64_t{link.forward().channels()} * model.hidden();
  }
  return elements;
}

LayerTensors OwnShapes(const Plan& plan, int rank) {
  const ModelSpec& model = plan.job().model();
  const RankPlan& r = plan.ranks(rank);
  LayerTensors layers = StageLayers(model, r.first_layer(), r.end_layer(), [&](int layer) {
    return Deals(plan) && !IsWhole(plan.deal(), model, layer);
  });
  for (const bool below : {true, false}) {
    for (const LinkPlan& link : plan.links()) {
      if (link.kind() != LinkPlan::BOUNDARY || (below ? link.upper() : link.lower()) != rank ||
          link.forward().kind() != CodecSpec::AUTOENCODER)
        continue;
      const int64_t channels = link.forward().channels(), hidden = model.hidden();
      if (below) {
        layers.front().insert(layers.front().begin(), {1, channels, hidden});
      } else {
        layers.back().push_back({1, hidden, channels});
      }
    }
  }
  return layers;
}

namespace {

GroupPlan* AddGroup(const std::string& id, const std::vector<int>& ranks, GroupPlan::Rule rule,
                    const CodecSpec& contribution, const CodecSpec& sum, Plan* plan) {
  GroupPlan* group = plan->add_groups();
  group->set_id(id);
  group->mutable_ranks()->Add(ranks.begin(), ranks.end());
  group->set_rule(rule);
  *group->mutable_contribution() = contribution;
  if (rule == GroupPlan::SHARDED) *group->mutable_sum() = sum;
  return group;
}

bool IsByMatrix(const GroupPlan& group) {
  return ByMatrix(group.contribution()) || ByMatrix(group.sum());
}

// What ranks reduce at the end of each step.
GroupPlan::Value StepValue(const JobSpec& job) {
  return job.recipe().optimizer() == kQuantizedAdam ? GroupPlan::MOMENTUM : GroupPlan::GRADIENT;
}

void SetShapes(const std::vector<TensorDims>& tensors, GroupPlan* group) {
  for (const TensorDims& d : tensors) {
    MatrixShape* shape = group->add_shapes();
    shape->set_rows(d.positions);
    shape->set_width(d.hidden);
  }
}

// What the groups of a stage's own parameters say of their tensors. Rows of one element where the
// codec works by matrix, else of kGradientRow.
std::vector<GroupPlan> PartsOf(const LayerTensors& layers, int buckets, bool by_matrix) {
  std::vector<GroupPlan> parts;
  const int64_t width = by_matrix ? 1 : kGradientRow;
  size_t end = layers.size();
  const std::vector<Bucket> cut = CutBuckets(layers, buckets, width);
  for (const Bucket& bucket : cut) {
    GroupPlan& part = parts.emplace_back();
    part.set_tensors(GroupPlan::OWN);
    part.set_width(width);
    part.set_rows(bucket.rows.count());
    const auto first = static_cast<size_t>(bucket.first_layer);
    for (size_t l = first; by_matrix && l < end; ++l) SetShapes(layers[l], &part);
    end = first;
    if (cut.size() == 1) continue;
    part.set_part(static_cast<int>(parts.size()) - 1);
    part.set_parts(static_cast<int>(cut.size()));
  }
  return parts;
}

// The same of fragments: strided layers, each fragment one after the other.
std::vector<GroupPlan> FragmentsOf(const LayerTensors& layers, const JobSpec& job, int first_layer,
                                   bool by_matrix) {
  const int fragments = std::max(1, job.strategy().fragments());
  std::vector<GroupPlan> parts;
  for (int f = 0; f < fragments; ++f) {
    std::vector<TensorDims> tensors;
    for (size_t l = 0; l < layers.size(); ++l) {
      if (FragmentOf(job, first_layer + static_cast<int>(l)) == f)
        tensors.insert(tensors.end(), layers[l].begin(), layers[l].end());
    }
    if (tensors.empty()) continue;
    GroupPlan& part = parts.emplace_back();
    part.set_tensors(GroupPlan::OWN);
    part.set_width(by_matrix ? 1 : kGradientRow);
    part.set_rows((ElementsOf(tensors) + part.width() - 1) / part.width());
    if (by_matrix) SetShapes(tensors, &part);
    if (fragments == 1) continue;
    part.set_part(f);
    part.set_parts(fragments);
  }
  return parts;
}

// Rows of one element where the codec works by matrix, else those of the embedding.
void SetTied(const ModelSpec& model, GroupPlan* group) {
  group->set_tensors(GroupPlan::TIED);
  const bool by_matrix = IsByMatrix(*group);
  const int64_t rows = model.vocabulary(), width = model.hidden();
  group->set_rows(by_matrix ? rows * width : rows);
  group->set_width(by_matrix ? 1 : width);
  if (by_matrix) SetShapes({{1, rows, width}}, group);
}

// Some rows by themselves lose what they lose among all, or less.
bool CodesPartsAsWell(const CodecSpec& codec) {
  if (codec.kind() == CodecSpec::FEEDBACK) return CodesPartsAsWell(codec.inner());
  return codec.kind() == CodecSpec::NONE || codec.kind() == CodecSpec::BF16 ||
         codec.kind() == CodecSpec::FP16 || codec.kind() == CodecSpec::QUANT;
}

// Parts of an exchange of the tied embedding's gradients: while one is on its way, others are
// coded, decoded and added up.
int TiedParts(const GroupPlan& group) {
  constexpr int64_t kPartBytes = 10 << 20, kMost = 16;
  if (group.rule() != GroupPlan::EXCHANGE || group.value() != GroupPlan::GRADIENT ||
      !CodesPartsAsWell(group.contribution()))
    return 1;
  const int64_t bytes = RowsBytes(group, group.contribution(), {0, group.rows()}, /*most=*/true);
  return static_cast<int>(std::clamp<int64_t>(bytes / kPartBytes, 1, kMost));
}

// The last rows first, as all parts lie in their set (parts.h).
void CutTied(const GroupPlan& whole, int parts, Plan* plan) {
  for (int i = 0; i < parts; ++i) {
    GroupPlan* part = plan->add_groups();
    *part = whole;
    part->set_id(absl::StrCat(whole.id(), " part ", i));
    part->set_rows(whole.rows() * (parts - i) / parts - whole.rows() * (parts - i - 1) / parts);
    part->set_part(i);
    part->set_parts(parts);
  }
}

// The shapes that a group by matrix needs; of another one none.
bool ShapesFit(const GroupPlan& group) {
  if (!IsByMatrix(group)) return group.shapes().empty();
  int64_t elements = 0;
  for (const MatrixShape& shape : group.shapes()) {
    constexpr int64_t kMost = int64_t{1} << 33;
    if (shape.rows() < 1 || shape.width() < 1 || shape.rows() > kMost / shape.width()) return false;
    elements += shape.rows() * shape.width();
  }
  return group.width() == 1 && elements == group.rows();
}

}  // namespace

std::vector<int> RanksOfStage(const Plan& plan, int stage) {
  std::vector<int> ranks;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (plan.ranks(r).stage() == stage) ranks.push_back(r);
  }
  return ranks;
}

void AddTiedGroup(const CodecSpec& codec, Plan* plan) {
  std::map<int, std::vector<int>> ends;  // by replica, or of all together
  const bool local = MakesLocalSteps(*plan);
  for (int r = 0; r < plan->ranks_size(); ++r) {
    if (HoldsTied(*plan, r)) ends[local ? plan->ranks(r).replica() : 0].push_back(r);
  }
  for (const auto& [replica, ranks] : ends) {
    if (ranks.size() < 2) continue;
    GroupPlan* group =
        AddGroup(local ? absl::StrCat(kTiedGroup, ".", replica) : kTiedGroup, ranks,
                 ranks.size() == 2 ? GroupPlan::EXCHANGE : GroupPlan::SHARDED, codec, codec, plan);
    SetTied(plan->job().model(), group);
    group->set_value(StepValue(plan->job()));
    const int parts = TiedParts(*group);
    if (parts == 1) continue;
    const GroupPlan whole = *group;
    plan->mutable_groups()->RemoveLast();
    CutTied(whole, parts, plan);
  }
}

void LimitQueues(Plan* plan) {
  for (LinkPlan& link : *plan->mutable_links()) {
    if (link.kind() != LinkPlan::GROUP) continue;
    const auto& groups = plan->groups();
    const auto shared = std::count_if(groups.begin(), groups.end(), [&](const GroupPlan& g) {
      return PositionIn(g, link.lower()) >= 0 && PositionIn(g, link.upper()) >= 0;
    });
    link.set_queue_limit(std::max(link.queue_limit(), static_cast<int>(shared) + 1));
  }
}

bool CodesGradientsOf(const JobSpec& job, int stage) {
  const CompressionSpec& c = job.compression();
  return !c.has_gradient_stages() || stage < c.gradient_stages();
}

void AddGradientGroups(const CodecSpec& contribution, const CodecSpec& sum,
                       const std::vector<LayerTensors>& layers_of_stage,
                       const std::vector<int>& buckets, Plan* plan) {
  const bool local = MakesLocalSteps(*plan);
  const GroupPlan::Value value = local ? GroupPlan::DIFFERENCE : StepValue(plan->job());
  const int stages = static_cast<int>(layers_of_stage.size());
  const auto add = [&](const std::string& id, int stage, bool coded) {
    GroupPlan* group =
        AddGroup(id, RanksOfStage(*plan, stage), GroupPlan::SHARDED,
                 coded ? contribution : CodecSpec(), coded ? sum : CodecSpec(), plan);
    group->set_value(value);
    return group;
  };
  for (int s = 0; s < stages; ++s) {
    if (RanksOfStage(*plan, s).size() < 2) continue;
    const bool coded = CodesGradientsOf(plan->job(), s);
    const bool by_matrix = coded && (ByMatrix(contribution) || ByMatrix(sum));
    const int first_layer = plan->ranks(RanksOfStage(*plan, s)[0]).first_layer();
    const std::vector<GroupPlan> parts =
        local ? FragmentsOf(layers_of_stage[s], plan->job(), first_layer, by_matrix)
              : PartsOf(layers_of_stage[s], s < static_cast<int>(buckets.size()) ? buckets[s] : 1,
                        by_matrix);
    for (const GroupPlan& part : parts) {
      std::string id = absl::StrCat("stage ", s);
      if (part.parts() > 0) absl::StrAppend(&id, " part ", part.part());
      add(id, s, coded)->MergeFrom(part);
    }
  }
  if (!local || stages == 1 || !IsTied(plan->job().model())) return;
  for (const int s : {0, stages - 1}) {
    GroupPlan* group = add(absl::StrCat(kTiedGroup, s == 0 ? " first" : " last"), s,
                           CodesGradientsOf(plan->job(), stages - 1));
    SetTied(plan->job().model(), group);
    if (plan->job().strategy().fragments() > 1)
      group->set_parts(plan->job().strategy().fragments());
  }
}

Share ShareOf(const Plan& plan, int replica) {
  if (plan.replicas().empty()) return {0, plan.job().recipe().global_batch()};
  Share share;
  for (int r = 0; r < replica; ++r) share.begin += plan.replicas(r).samples();
  share.end = share.begin + plan.replicas(replica).samples();
  return share;
}

Share SamplesOf(const Share& share, int64_t samples, int64_t batch) {
  return {samples * share.begin / batch, samples * share.end / batch};
}

absl::Status CheckReplicas(const Plan& plan) {
  const int replicas = std::max(1, plan.replicas_size());
  for (const RankPlan& rank : plan.ranks()) {
    if (rank.replica() < 0 || rank.replica() >= replicas)
      return absl::InvalidArgumentError(absl::StrCat("replicas: the plan has ", replicas,
                                                     ", a rank is of number ", rank.replica()));
  }
  int64_t samples = 0;
  for (const ReplicaPlan& replica : plan.replicas()) {
    if (replica.samples() < 1) return absl::InvalidArgumentError("replicas: one has no samples");
    samples += replica.samples();
  }
  if (!plan.replicas().empty() && samples != plan.job().recipe().global_batch())
    return absl::InvalidArgumentError(absl::StrCat("replicas: they take ", samples,
                                                   " samples of a batch of ",
                                                   plan.job().recipe().global_batch()));
  return absl::OkStatus();
}

bool FrozenAt(const JobSpec& job, int64_t step) {
  const RecipeSpec& r = job.recipe();
  return r.optimizer() == kQuantizedAdam && step >= r.optimizer_warmup();
}

bool GoesExact(const Plan& plan, const GroupPlan& group, int64_t step) {
  return group.value() == GroupPlan::MOMENTUM && !FrozenAt(plan.job(), step);
}

const CodecSpec& GroupCodec(const Plan& plan, const GroupPlan& group, FrameHeader::Kind kind,
                            int64_t step) {
  if (GoesExact(plan, group, step)) return CodecSpec::default_instance();
  return kind == FrameHeader::SUM ? group.sum() : group.contribution();
}

int PositionIn(const GroupPlan& group, int rank) {
  for (int i = 0; i < group.ranks_size(); ++i) {
    if (group.ranks(i) == rank) return i;
  }
  return -1;
}

Rows OwnedRows(const GroupPlan& group, int position) {
  const int64_t n = group.ranks_size();
  const auto cut = [&](int64_t part) {
    const int64_t wanted = group.rows() * part / n;
    if (group.shapes().empty() || part == 0 || part == n) return wanted;
    int64_t before = 0;  // the end of a tensor that is nearest
    for (const MatrixShape& shape : group.shapes()) {
      const int64_t after = before + shape.rows() * shape.width();
      if (after >= wanted) return wanted - before <= after - wanted ? before : after;
      before = after;
    }
    return before;
  };
  return {cut(position), cut(position + 1)};
}

std::vector<TensorDims> ShapesIn(const GroupPlan& group, const Rows& rows) {
  std::vector<TensorDims> shapes;
  int64_t at = 0;
  for (const MatrixShape& shape : group.shapes()) {
    if (at >= rows.begin && at < rows.end) shapes.push_back({1, shape.rows(), shape.width()});
    at += shape.rows() * shape.width();
  }
  return shapes;
}

int64_t RowsBytes(const GroupPlan& group, const CodecSpec& codec, const Rows& rows, bool most) {
  const auto bytes = [most](const CodecSpec& spec, const TensorDims& d) {
    return most ? MaxEncodedBytes(spec, d) : EncodedBytes(spec, d, true);
  };
  if (group.shapes().empty()) return bytes(codec, {1, rows.count(), group.width()});
  int64_t all = 0;
  for (const TensorDims& d : ShapesIn(group, rows))
    all += bytes(d.positions == 1 ? CodecSpec() : codec, d);
  return all;
}

Rows FrameRows(const GroupPlan& group, FrameHeader::Kind kind, int from, int to) {
  if (kind == FrameHeader::SUM) return OwnedRows(group, PositionIn(group, from));
  if (group.rule() == GroupPlan::SHARDED) return OwnedRows(group, PositionIn(group, to));
  return {0, group.rows()};
}

std::string DirectionCodecs(const Plan& plan, const LinkPlan& link, bool forward) {
  if (link.kind() == LinkPlan::BOUNDARY) {
    return absl::StrCat(FormatCodec(forward ? link.forward() : link.backward()),
                        !forward && link.epilogue() ? " (epilogue)" : "");
  }
  std::vector<std::string> codecs;
  for (const GroupPlan& group : plan.groups()) {
    if (PositionIn(group, link.lower()) < 0 || PositionIn(group, link.upper()) < 0) continue;
    std::string text = FormatCodec(group.contribution());
    if (std::find(codecs.begin(), codecs.end(), text) == codecs.end())
      codecs.push_back(std::move(text));
  }
  return codecs.empty() ? FormatCodec(CodecSpec()) : absl::StrJoin(codecs, ", ");
}

absl::Status CheckGroup(const Plan& plan, const GroupPlan& group) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group.id(), ": ", what));
  };
  std::set<int> ranks;
  for (int rank : group.ranks()) {
    if (rank < 0 || rank >= plan.ranks_size())
      return wrong(absl::StrCat("the plan has ", plan.ranks_size(), " ranks, none is ", rank));
    if (!ranks.insert(rank).second) return wrong(absl::StrCat("rank ", rank, " is in it twice"));
  }
  if (ranks.size() < 2) return wrong("it has fewer than two ranks");
  if (group.rows() <= 0 || group.width() <= 0) return wrong("its tensors have no size");
  if (group.value() == GroupPlan::DIFFERENCE && !MakesLocalSteps(plan))
    return wrong("it reduces differences of weights, and the job makes no local steps");
  if (group.value() == GroupPlan::MOMENTUM && plan.job().recipe().optimizer() != kQuantizedAdam)
    return wrong("it reduces first moments, and the optimiser is not quantized_adam");
  if (group.value() == GroupPlan::SLICE) {
    if (absl::Status s = CheckSliceGroup(plan, group); !s.ok()) return wrong(s.message());
  }
  const bool sharded = group.rule() == GroupPlan::SHARDED;
  if (!sharded && group.rule() != GroupPlan::EXCHANGE) return wrong("its rule is not known");
  for (const CodecSpec* codec : {&group.contribution(), &group.sum()}) {
    if (codec == &group.sum() && !sharded) continue;
    if (absl::Status s = ValidateCodec(*codec); !s.ok()) return wrong(s.message());
    if (!GroupsTake(*codec))
      return wrong(absl::StrCat("the codec ", FormatCodec(*codec), " can't be used in a group"));
  }
  if (!ShapesFit(group))
    return wrong("the shapes of its tensors are not those that its codec needs");
  return CheckParts(plan, group);
}

}  // namespace isthmus
