#include "proto/plan/actions.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/action_check.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"
#include "proto/plan/parts.h"
#include "proto/plan/schedule.h"
#include "proto/plan/step_end.h"

namespace isthmus {
namespace {

int CeilDivide(int64_t a, int64_t b) { return b > 0 ? static_cast<int>((a + b - 1) / b) : 0; }

// Writes the end of a step on one rank. The parts follow each other; where steps overlap, passes of
// the next one lie between them.
class EndOfStep {
 public:
  EndOfStep(const Plan& plan, const Wiring& wiring, int rank, End end)
      : plan_(plan),
        wiring_(wiring),
        rank_(rank),
        end_(end),
        below_(Boundary(plan, rank, true)),
        above_(Boundary(plan, rank, false)) {
    for (int r = 0; r < plan.ranks_size(); ++r) {
      if (end == End::kLocalStep && plan.ranks(r).replica() != plan.ranks(rank).replica()) continue;
      if (Boundary(plan, r, true) < 0) heads_.push_back(r);
    }
  }

  absl::StatusOr<ActionList> Write() {
    RETURN_IF_ERROR(FindRoot());
    HashesUp(Action::SEND);
    HashesDown(Action::SEND);
    Reduce(Action::OFFER, true);
    Exchange(Action::DEAL);
    Reduce(Action::REDUCE, true);
    Exchange(Action::MERGE);
    Reduce(Action::COLLECT, true);
    HashesDown(Action::RECV);
    Votes();
    Reduce(Action::REDUCE, false);
    HashesUp(Action::RECV);
    Decision();
    return std::move(list_);
  }

  // Frames of a link go in the order of its passes, so those of hashes lie where the last pass of
  // the step is over and none of the next one has begun.
  absl::StatusOr<ActionList> WriteBetween(const OverlapPasses& passes) {
    RETURN_IF_ERROR(FindRoot());
    HashesUp(Action::SEND);
    HashesUp(Action::RECV);
    Append(passes.ending);
    HashesDown(Action::SEND);
    HashesDown(Action::RECV);
    Reduce(Action::OFFER, true);
    Append(passes.before_vote);
    for (const Action::Op op : {Action::REDUCE, Action::COLLECT}) Reduce(op, true);
    Votes();
    Append(passes.after_vote);
    Reduce(Action::REDUCE, false);
    Decision();
    return std::move(list_);
  }

 private:
  void Add(Action::Op op) { list_.emplace_back().set_op(op); }

  void Append(const ActionList& list) { list_.insert(list_.end(), list.begin(), list.end()); }

  void Frame(Action::Op op, int link, FrameHeader::Kind what) {
    Add(op);
    list_.back().set_link(link);
    list_.back().set_what(what);
  }

  void HashesUp(Action::Op op) {
    const int link = op == Action::SEND ? above_ : below_;
    if (HasHash(link, true)) Frame(op, link, FrameHeader::BUFFER_HASH);
  }
  void HashesDown(Action::Op op) {
    const int link = op == Action::SEND ? below_ : above_;
    if (HasHash(link, false)) Frame(op, link, FrameHeader::BUFFER_HASH);
  }

  bool HasHash(int link, bool up) const {
    if (link < 0 || end_ == End::kAgreement || !plan_.job().compression().check_buffers())
      return false;
    const LinkPlan& l = plan_.links(link);
    return IsStateful(up ? l.forward() : l.backward());
  }

  // False: this rank's vote does not wait for the group.
  bool Early(const GroupPlan& group) const {
    return group.rule() != GroupPlan::EXCHANGE || group.tensors() != GroupPlan::TIED ||
           CountsTiedNorm(plan_, rank_);
  }

  // Buckets that were offered while the last backward pass ran come first.
  void Reduce(Action::Op op, bool early) {
    for (const bool offered : {true, false}) {
      for (int g = 0; g < plan_.groups_size(); ++g) {
        const GroupPlan& group = plan_.groups(g);
        if (PositionIn(group, rank_) < 0 || !Reduces(end_, group)) continue;
        if (IsOfferedEarly(plan_, group) != offered || (offered && op == Action::OFFER)) continue;
        if (op != Action::OFFER && Early(group) != early) continue;
        if (op == Action::COLLECT && group.rule() != GroupPlan::SHARDED) continue;
        Add(op);
        list_.back().set_group(g);
      }
    }
  }

  void Exchange(Action::Op op) {
    for (int g = 0; g < plan_.groups_size(); ++g) {
      if (PositionIn(plan_.groups(g), rank_) < 0 || !Exchanges(end_, plan_.groups(g))) continue;
      Add(op);
      list_.back().set_group(g);
    }
  }

  absl::Status FindRoot() {
    const int root = heads_.front();
    if (rank_ == root) {
      for (size_t h = 1; h < heads_.size(); ++h)
        others_.push_back(wiring_.GroupLink(root, heads_[h]));
      return absl::OkStatus();
    }
    towards_root_ = below_ >= 0 ? below_ : wiring_.GroupLink(rank_, root);
    if (towards_root_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("schedule: no link takes the votes of rank ", rank_, " to rank ", root));
  }

  void Votes() {
    if (above_ >= 0) Frame(Action::RECV, above_, FrameHeader::VOTE);
    for (int other : others_) Frame(Action::RECV, other, FrameHeader::VOTE);
    if (towards_root_ < 0) {
      Add(Action::DECIDE);
    } else {
      Frame(Action::SEND, towards_root_, FrameHeader::VOTE);
    }
  }

  void Decision() {
    if (towards_root_ >= 0) Frame(Action::RECV, towards_root_, FrameHeader::DECISION);
    for (int other : others_) Frame(Action::SEND, other, FrameHeader::DECISION);
    if (above_ >= 0) Frame(Action::SEND, above_, FrameHeader::DECISION);
    Add(end_ == End::kAgreement ? Action::OUTER : Action::STEP);
  }

  const Plan& plan_;
  const Wiring& wiring_;
  const int rank_;
  const End end_;
  const int below_, above_;
  std::vector<int> heads_;   // first stages that vote together; the smallest rank decides
  int towards_root_ = -1;    // link; -1: this rank decides
  std::vector<int> others_;  // of the rank that decides: links to the other heads
  ActionList list_;
};

// Cuts the last backward pass into as many pieces as there are buckets, and offers each bucket but
// the last one between them.
void OfferBuckets(const Plan& plan, int rank, ActionList* list) {
  const auto last = std::find_if(list->rbegin(), list->rend(),
                                 [](const Action& a) { return a.op() == Action::BWD; });
  if (last == list->rend()) return;
  ActionList pieces;
  for (int g = 0; g < plan.groups_size(); ++g) {
    if (PositionIn(plan.groups(g), rank) < 0 || !IsOfferedEarly(plan, plan.groups(g))) continue;
    pieces.push_back(*last);
    pieces.emplace_back().set_op(Action::OFFER);
    pieces.back().set_group(g);
  }
  list->insert(last.base() - 1, pieces.begin(), pieces.end());
}

}  // namespace

ActionList TrainOf(const Plan& plan, int rank) {
  const auto& list = plan.ranks(rank).train();
  return {list.begin(), list.end()};
}

std::map<int, int> BackwardPieces(const ActionList& list) {
  std::map<int, int> pieces;
  for (const Action& a : list) {
    if (a.op() == Action::BWD) ++pieces[a.micro()];
  }
  return pieces;
}

ActionList AgreeOf(const Plan& plan, int rank) {
  const auto& list = plan.ranks(rank).agree();
  return {list.begin(), list.end()};
}

int CountForwards(const google::protobuf::RepeatedPtrField<Action>& list) {
  return static_cast<int>(std::count_if(list.begin(), list.end(),
                                        [](const Action& a) { return a.op() == Action::FWD; }));
}

bool CountsTiedNorm(const Plan& plan, int rank) {
  for (const GroupPlan& group : plan.groups()) {
    if (group.tensors() == GroupPlan::TIED && group.value() != GroupPlan::DIFFERENCE &&
        PositionIn(group, rank) >= 0)
      return group.ranks(0) == rank;
  }
  return true;
}

int QueueLimit(const Plan& plan, const LinkPlan& link) {
  return std::max(
      1, link.queue_limit() > 0 ? link.queue_limit() : plan.job().strategy().queue_limit());
}

absl::Status WriteActions(const std::vector<std::vector<int>>& warmups, Plan* plan) {
  const RecipeSpec& r = plan->job().recipe();
  RETURN_IF_ERROR(CheckReplicas(*plan));
  const int eval_micros = CeilDivide(r.eval_samples(), r.micro_batch());
  std::map<int, std::vector<int>> chains;  // by replica: its ranks, from the first stage on
  for (int rank = 0; rank < plan->ranks_size(); ++rank)
    chains[plan->ranks(rank).replica()].push_back(rank);
  const Wiring wiring = Wiring::Of(*plan);
  const bool local = MakesLocalSteps(*plan);
  for (const auto& [replica, ranks] : chains) {
    const int stages = static_cast<int>(ranks.size());
    const Share share = ShareOf(*plan, replica);
    const int micros = CeilDivide(share.count(), r.micro_batch());
    const auto own =
        static_cast<size_t>(replica) < warmups.size() ? warmups[replica] : std::vector<int>();
    std::vector<ActionList> train(stages);
    std::vector<OverlapPasses> passes(stages);
    if (Overlaps(plan->job())) {
      ASSIGN_OR_RETURN(passes, BuildOverlap(stages, micros, own, plan->groups_size() > 0));
    } else {
      ASSIGN_OR_RETURN(train,
                       BuildSchedule(plan->job().strategy().schedule(), stages, micros, own));
    }
    // One replica validates; the others wait for it in the next vote.
    const bool validates = replica == chains.begin()->first;
    auto eval = BuildEvalSchedule(stages, validates ? eval_micros : 0);
    for (int s = 0; s < stages; ++s) {
      RankPlan* rank = plan->mutable_ranks(ranks[s]);
      for (ActionList* list : {&train[s], &eval[s], &passes[s].ending, &passes[s].before_vote,
                               &passes[s].after_vote}) {
        for (Action& a : *list) {
          if (a.op() == Action::SEND || a.op() == Action::RECV)
            a.set_link(Boundary(*plan, ranks[s], a.link() < s));
        }
      }
      if (!Overlaps(plan->job())) OfferBuckets(*plan, ranks[s], &train[s]);
      EndOfStep writer(*plan, wiring, ranks[s], local ? End::kLocalStep : End::kStep);
      ASSIGN_OR_RETURN(const ActionList end,
                       Overlaps(plan->job()) ? writer.WriteBetween(passes[s]) : writer.Write());
      *rank->mutable_train() = {train[s].begin(), train[s].end()};
      rank->mutable_train()->Add(end.begin(), end.end());
      *rank->mutable_eval() = {eval[s].begin(), eval[s].end()};
      if (!local) continue;
      ASSIGN_OR_RETURN(const ActionList agree,
                       EndOfStep(*plan, wiring, ranks[s], End::kAgreement).Write());
      *rank->mutable_agree() = {agree.begin(), agree.end()};
    }
  }
  return CheckActions(*plan);
}

}  // namespace isthmus
