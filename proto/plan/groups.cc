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
#include "proto/model/model_cost.h"

namespace isthmus {

bool Embeds(const Plan& plan, int rank) { return plan.ranks(rank).first_layer() == 0; }

bool HasHead(const Plan& plan, int rank) {
  return plan.ranks(rank).end_layer() == plan.job().model().layers();
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
  if (Embeds(plan, rank) != HasHead(plan, rank))
    elements -= int64_t{model.vocabulary()} * model.hidden();
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() != LinkPlan::BOUNDARY || (link.lower() != rank && link.upper() != rank))
      continue;
    if (link.forward().kind() == CodecSpec::AUTOENCODER)
      elements += int64_t{link.forward().channels()} * model.hidden();
  }
  return elements;
}

bool MakesLocalSteps(const Plan& plan) {
  return plan.replicas_size() > 1 && plan.job().strategy().local_steps() > 1;
}

bool AgreesAfter(const Plan& plan, int64_t step) {
  return MakesLocalSteps(plan) && ((step + 1) % plan.job().strategy().local_steps() == 0 ||
                                   step + 1 == plan.job().recipe().steps());
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

void SetTied(const ModelSpec& model, GroupPlan* group) {
  group->set_tensors(GroupPlan::TIED);
  group->set_rows(model.vocabulary());
  group->set_width(model.hidden());
}

std::vector<int> RanksOfStage(const Plan& plan, int stage) {
  std::vector<int> ranks;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    if (plan.ranks(r).stage() == stage) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace

void AddTiedGroup(const CodecSpec& codec, Plan* plan) {
  std::map<int, std::vector<int>> ends;  // by replica, or of all together
  const bool local = MakesLocalSteps(*plan);
  for (int r = 0; r < plan->ranks_size(); ++r) {
    if (Embeds(*plan, r) != HasHead(*plan, r))
      ends[local ? plan->ranks(r).replica() : 0].push_back(r);
  }
  for (const auto& [replica, ranks] : ends) {
    if (ranks.size() < 2) continue;
    SetTied(
        plan->job().model(),
        AddGroup(local ? absl::StrCat(kTiedGroup, ".", replica) : kTiedGroup, ranks,
                 ranks.size() == 2 ? GroupPlan::EXCHANGE : GroupPlan::SHARDED, codec, codec, plan));
  }
}

void AddGradientGroups(const CodecSpec& contribution, const CodecSpec& sum,
                       const std::vector<int64_t>& elements_of_stage, Plan* plan) {
  const bool local = MakesLocalSteps(*plan);
  const GroupPlan::Value value = local ? GroupPlan::DIFFERENCE : GroupPlan::GRADIENT;
  const int stages = static_cast<int>(elements_of_stage.size());
  for (int s = 0; s < stages; ++s) {
    const std::vector<int> ranks = RanksOfStage(*plan, s);
    if (ranks.size() < 2) continue;
    GroupPlan* group =
        AddGroup(absl::StrCat("stage ", s), ranks, GroupPlan::SHARDED, contribution, sum, plan);
    group->set_tensors(GroupPlan::OWN);
    group->set_value(value);
    group->set_rows((elements_of_stage[s] + kGradientRow - 1) / kGradientRow);
    group->set_width(kGradientRow);
  }
  if (!local || stages == 1) return;
  for (const int s : {0, stages - 1}) {
    GroupPlan* group =
        AddGroup(absl::StrCat(kTiedGroup, s == 0 ? " first" : " last"), RanksOfStage(*plan, s),
                 GroupPlan::SHARDED, contribution, sum, plan);
    SetTied(plan->job().model(), group);
    group->set_value(value);
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

int PositionIn(const GroupPlan& group, int rank) {
  for (int i = 0; i < group.ranks_size(); ++i) {
    if (group.ranks(i) == rank) return i;
  }
  return -1;
}

Rows OwnedRows(const GroupPlan& group, int position) {
  const int64_t n = group.ranks_size();
  return {group.rows() * position / n, group.rows() * (position + 1) / n};
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
  const bool sharded = group.rule() == GroupPlan::SHARDED;
  if (!sharded && group.rule() != GroupPlan::EXCHANGE) return wrong("its rule is not known");
  for (const CodecSpec* codec : {&group.contribution(), &group.sum()}) {
    if (codec == &group.sum() && !sharded) continue;
    if (absl::Status s = ValidateCodec(*codec); !s.ok()) return wrong(s.message());
    if (!GroupsTake(*codec))
      return wrong(absl::StrCat("the codec ", FormatCodec(*codec), " can't be used in a group"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus
