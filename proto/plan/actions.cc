#include "proto/plan/actions.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"
#include "proto/plan/schedule.h"

namespace isthmus {
namespace {

// Fill, a step between others, drain.
constexpr int kOverlappedSteps = 3;

int CeilDivide(int64_t a, int64_t b) { return b > 0 ? static_cast<int>((a + b - 1) / b) : 0; }

// Of the boundaries of `rank`, the one that it is the upper, or lower, end of; -1: none.
int Boundary(const Plan& plan, int rank, bool below) {
  for (int l = 0; l < plan.links_size(); ++l) {
    const LinkPlan& link = plan.links(l);
    if (link.kind() == LinkPlan::BOUNDARY && (below ? link.upper() : link.lower()) == rank)
      return l;
  }
  return -1;
}

// What a list ends: a step of all, a step that each replica makes by itself, or the agreement of
// replicas after some of those.
enum class End { kStep, kLocalStep, kAgreement };

// The groups that are reduced there.
bool Reduces(End end, const GroupPlan& group) {
  return (end == End::kAgreement) == (group.value() == GroupPlan::DIFFERENCE);
}

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
    for (const Action::Op op : {Action::OFFER, Action::REDUCE, Action::COLLECT}) Reduce(op, true);
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

  void Reduce(Action::Op op, bool early) {
    for (int g = 0; g < plan_.groups_size(); ++g) {
      const GroupPlan& group = plan_.groups(g);
      if (PositionIn(group, rank_) < 0 || !Reduces(end_, group)) continue;
      if (op != Action::OFFER && Early(group) != early) continue;
      if (op == Action::COLLECT && group.rule() != GroupPlan::SHARDED) continue;
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

// What must come before what on one rank; how often each thing is done.
class OrderCheck {
 public:
  OrderCheck(const Plan& plan, const Wiring& wiring, int rank, End end)
      : plan_(plan),
        wiring_(wiring),
        rank_(rank),
        end_(end),
        below_(Boundary(plan, rank, true)),
        above_(Boundary(plan, rank, false)),
        overlaps_(Overlaps(plan.job())),
        list_(end == End::kAgreement ? AgreeOf(plan, rank) : TrainOf(plan, rank)),
        micros_(end == End::kAgreement ? 0 : CountForwards(plan.ranks(rank).train())) {}

  absl::Status Run() {
    for (at_ = 0; at_ < list_.size(); ++at_) RETURN_IF_ERROR(Check(list_[at_]));
    if (micros_ == 0 && end_ != End::kAgreement) return Lacks("it has no FWD");
    for (int m = 0; m < micros_; ++m) {
      const int passes = Bit(Action::FWD) | Bit(Action::BWD);
      if ((done_[m] & passes) != passes)
        return Lacks(absl::StrCat("micro-batch ", m, " lacks its FWD or BWD"));
    }
    for (int g = 0; g < plan_.groups_size(); ++g) {
      if (PositionIn(plan_.groups(g), rank_) < 0 || !Reduces(end_, plan_.groups(g))) continue;
      if (reduced_[g] != (plan_.groups(g).rule() == GroupPlan::SHARDED ? 3 : 2))
        return Lacks(absl::StrCat(plan_.groups(g).id(), " is not reduced"));
    }
    if (list_.empty() || list_.back().op() != Last())
      return Lacks(absl::StrCat("does not end with ", Action::Op_Name(Last())));
    return absl::OkStatus();
  }

  bool decides() const { return decides_; }

 private:
  enum Extra { kGot = 10, kSent = 11, kGotGradient = 12, kSentGradient = 13 };
  static int Bit(int what) { return 1 << what; }
  Action::Op Last() const { return end_ == End::kAgreement ? Action::OUTER : Action::STEP; }

  absl::Status Broken(absl::string_view why) const {
    return absl::FailedPreconditionError(absl::StrCat("schedule: rank ", rank_, ", action ", at_,
                                                      " (", ActionName(list_[at_], wiring_),
                                                      "): ", why));
  }
  absl::Status Lacks(absl::string_view why) const {
    return absl::FailedPreconditionError(absl::StrCat("schedule: rank ", rank_, ": ", why));
  }

  absl::Status Check(const Action& a) {
    const bool of_pass = a.op() == Action::FWD || a.op() == Action::BWD || IsOfPass(a);
    if (a.ahead() != 0 && (!overlaps_ || !of_pass || a.ahead() != 1))
      return Broken("it can't be ahead of its step");
    if (stepped_) return Broken(absl::StrCat(Action::Op_Name(Last()), " ends it"));
    switch (a.op()) {
      case Action::FWD:
      case Action::BWD:
        return Pass(a);
      case Action::SEND:
      case Action::RECV:
        return Frame(a);
      case Action::OFFER:
      case Action::REDUCE:
      case Action::COLLECT:
        return Reduction(a);
      case Action::DECIDE:
      case Action::STEP:
      case Action::OUTER:
        return Decision(a);
      default:
        return Broken("there is no such action");
    }
  }

  absl::Status Once(const Action& a, int what, int before, absl::string_view first) {
    if (a.micro() < 0 || a.micro() >= micros_)
      return Broken(absl::StrCat("there are ", micros_, " micro-batches"));
    int& bits = done_[a.micro()];
    if ((bits & Bit(what)) != 0) return Broken("for the second time");
    if (before >= 0 && (bits & Bit(before)) == 0) return Broken(absl::StrCat("before its ", first));
    bits |= Bit(what);
    return absl::OkStatus();
  }

  static bool IsOfPass(const Action& a) {
    return (a.op() == Action::SEND || a.op() == Action::RECV) &&
           (a.what() == FrameHeader::ACTIVATION || a.what() == FrameHeader::GRADIENT);
  }

  absl::Status Pass(const Action& a) {
    if (offered_ && a.ahead() == 0) return Broken("after a reduction began");
    if (a.op() == Action::FWD) {
      if (overlaps_ && a.ahead() == 0) return Broken("that of a step is in the list before");
      return Once(a, Action::FWD, below_ >= 0 ? static_cast<int>(kGot) : -1, "activation came");
    }
    // One that is not ahead ends a micro-batch that the list before began.
    const bool begun_here = !overlaps_ || a.ahead() == 1;
    RETURN_IF_ERROR(Once(a, Action::BWD, begun_here ? static_cast<int>(Action::FWD) : -1, "FWD"));
    if (above_ >= 0 && (done_[a.micro()] & Bit(kGotGradient)) == 0)
      return Broken("before its gradient came");
    return absl::OkStatus();
  }

  absl::Status Frame(const Action& a) {
    const bool send = a.op() == Action::SEND;
    switch (a.what()) {
      case FrameHeader::ACTIVATION:
        if (a.link() != (send ? above_ : below_)) return Broken("not the boundary it belongs to");
        return send ? Once(a, kSent, Action::FWD, "FWD") : Once(a, kGot, -1, "");
      case FrameHeader::GRADIENT:
        if (a.link() != (send ? below_ : above_)) return Broken("not the boundary it belongs to");
        return send ? Once(a, kSentGradient, Action::BWD, "BWD") : Once(a, kGotGradient, -1, "");
      case FrameHeader::BUFFER_HASH:
        return absl::OkStatus();
      case FrameHeader::VOTE:
        if (voted_) return Broken("after its own vote");
        voted_ = send;
        return absl::OkStatus();
      case FrameHeader::DECISION:
        if (send) return decided_ ? absl::OkStatus() : Broken("before it has one");
        if (!voted_) return Broken("before its vote");
        if (decided_) return Broken("for the second time");
        decided_ = true;
        return absl::OkStatus();
      default:
        return Broken("no frame of a step that is sent by itself");
    }
  }

  absl::Status Reduction(const Action& a) {
    const int groups = plan_.groups_size();
    if (a.group() < 0 || a.group() >= groups)
      return Broken(absl::StrCat("there are ", groups, " groups"));
    if (!Reduces(end_, plan_.groups(a.group()))) return Broken("another list reduces it");
    int& stage = reduced_[a.group()];
    const int wanted = a.op() == Action::OFFER ? 0 : a.op() == Action::REDUCE ? 1 : 2;
    if (stage != wanted) return Broken("out of order");
    if (a.op() == Action::COLLECT && plan_.groups(a.group()).rule() != GroupPlan::SHARDED)
      return Broken("only a sharded group is collected");
    ++stage;
    offered_ = true;
    return absl::OkStatus();
  }

  absl::Status Decision(const Action& a) {
    if (a.op() != Action::DECIDE) {
      if (a.op() != Last()) return Broken("it belongs into another list");
      stepped_ = true;
      return decided_ ? absl::OkStatus() : Broken("before the decision");
    }
    if (voted_ || decided_) return Broken("this rank's vote has left already");
    voted_ = decided_ = decides_ = true;
    return absl::OkStatus();
  }

  const Plan& plan_;
  const Wiring& wiring_;
  const int rank_;
  const End end_;
  const int below_, above_;
  const bool overlaps_;
  const ActionList list_;
  const int micros_;
  size_t at_ = 0;
  std::map<int, int> done_;     // of each micro-batch: bits of what was done
  std::map<int, int> reduced_;  // of each group: how far it is
  bool offered_ = false, voted_ = false, decided_ = false, decides_ = false, stepped_ = false;
};

absl::Status CheckEval(const Plan& plan, const Wiring& wiring, int rank) {
  const int below = Boundary(plan, rank, true), above = Boundary(plan, rank, false);
  for (const Action& a : plan.ranks(rank).eval()) {
    const bool frame = a.op() == Action::SEND || a.op() == Action::RECV;
    if (a.op() == Action::FWD) continue;
    if (!frame || a.what() != FrameHeader::EVAL_ACTIVATION ||
        a.link() != (a.op() == Action::SEND ? above : below)) {
      return absl::FailedPreconditionError(absl::StrCat("schedule: rank ", rank, ": ",
                                                        ActionName(a, wiring),
                                                        " has no place in a validation pass"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ActionList TrainOf(const Plan& plan, int rank) {
  const auto& list = plan.ranks(rank).train();
  return {list.begin(), list.end()};
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
    if (group.tensors() == GroupPlan::TIED && group.value() == GroupPlan::GRADIENT &&
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

absl::Status CheckActions(const Plan& plan) {
  const Wiring wiring = Wiring::Of(plan);
  const bool local = MakesLocalSteps(plan);
  int deciding = 0, agreeing = 0;
  std::vector<ActionList> train, eval, agree;
  for (int r = 0; r < plan.ranks_size(); ++r) {
    OrderCheck check(plan, wiring, r, local ? End::kLocalStep : End::kStep);
    RETURN_IF_ERROR(check.Run());
    RETURN_IF_ERROR(CheckEval(plan, wiring, r));
    deciding += check.decides();
    train.push_back(TrainOf(plan, r));
    eval.emplace_back(plan.ranks(r).eval().begin(), plan.ranks(r).eval().end());
    agree.push_back(AgreeOf(plan, r));
    if (!local) {
      if (!agree.back().empty())
        return absl::FailedPreconditionError(
            absl::StrCat("schedule: rank ", r, " agrees, and the job makes no local steps"));
      continue;
    }
    OrderCheck check_agree(plan, wiring, r, End::kAgreement);
    RETURN_IF_ERROR(check_agree.Run());
    agreeing += check_agree.decides();
  }
  const int wanted = local ? plan.replicas_size() : 1;
  if (deciding != wanted || agreeing != (local ? 1 : 0))
    return absl::FailedPreconditionError(
        absl::StrCat("schedule: ", deciding == wanted ? agreeing : deciding, " ranks decide, ",
                     deciding == wanted ? 1 : wanted, " must"));
  const int limit = std::max(1, plan.job().strategy().queue_limit());
  if (Overlaps(plan.job())) train = UnrollAll(train, kOverlappedSteps);
  for (const std::vector<ActionList>* lists : {&train, &eval, &agree})
    RETURN_IF_ERROR(Simulate(*lists, wiring, limit, ScheduleCosts::Unit(wiring)).status());
  return absl::OkStatus();
}

}  // namespace isthmus
