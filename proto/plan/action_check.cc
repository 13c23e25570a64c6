#include "proto/plan/action_check.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/plan/actions.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"
#include "proto/plan/parts.h"
#include "proto/plan/step_end.h"

namespace isthmus {
namespace {

// Fill, a step between others, drain.
constexpr int kOverlappedSteps = 3;

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
        micros_(end == End::kAgreement ? 0 : CountForwards(plan.ranks(rank).train())),
        pieces_(BackwardPieces(list_)) {}

  absl::Status Run() {
    for (const auto& [micro, pieces] : pieces_) {
      if (pieces != 1 && (overlaps_ || pieces != GradientParts(plan_, rank_)))
        return Lacks(absl::StrCat("the backward pass of micro-batch ", micro, " has ", pieces,
                                  " pieces, and its gradients ", GradientParts(plan_, rank_),
                                  " parts"));
    }
    for (at_ = 0; at_ < list_.size(); ++at_) RETURN_IF_ERROR(Check(list_[at_]));
    if (micros_ == 0 && end_ != End::kAgreement) return Lacks("it has no FWD");
    for (int m = 0; m < micros_; ++m) {
      const int passes = Bit(Action::FWD) | Bit(Action::BWD);
      if ((done_[m] & passes) != passes)
        return Lacks(absl::StrCat("micro-batch ", m, " lacks its FWD or BWD"));
    }
    for (int g = 0; g < plan_.groups_size(); ++g) {
      if (PositionIn(plan_.groups(g), rank_) < 0) continue;
      if (Exchanges(end_, plan_.groups(g)) && reduced_[g] != 2)
        return Lacks(absl::StrCat(plan_.groups(g).id(), " are not exchanged"));
      if (!Reduces(end_, plan_.groups(g))) continue;
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
      case Action::DEAL:
      case Action::MERGE:
        return Exchange(a);
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
    if (a.op() == Action::FWD) {
      if (offered_ && a.ahead() == 0) return Broken("after a reduction began");
      if (overlaps_ && a.ahead() == 0) return Broken("that of a step is in the list before");
      return Once(a, Action::FWD, below_ >= 0 ? static_cast<int>(kGot) : -1, "activation came");
    }
    // One that is not ahead ends a micro-batch that the list before began.
    const bool begun_here = !overlaps_ || a.ahead() == 1;
    if (begun_here && (done_[a.micro()] & Bit(Action::FWD)) == 0) return Broken("before its FWD");
    if (above_ >= 0 && (done_[a.micro()] & Bit(kGotGradient)) == 0)
      return Broken("before its gradient came");
    if (++backward_[a.micro()] < pieces_.at(a.micro())) return absl::OkStatus();
    return Once(a, Action::BWD, -1, "");
  }

  // The gradients that a group reduces are complete: no backward pass of the step is to come, but
  // for pieces of the last one that compute what lies below a bucket.
  absl::Status Complete(const GroupPlan& group) const {
    int left = 0;
    for (size_t i = at_ + 1; i < list_.size(); ++i) {
      if (list_[i].op() != Action::BWD || list_[i].ahead() != 0) continue;
      const auto pieces = pieces_.find(list_[i].micro());
      if (!IsOfferedEarly(plan_, group) || pieces->second != group.parts())
        return Broken("before its gradients are complete");
      ++left;
    }
    if (left > 0 && left > group.parts() - 1 - group.part())
      return Broken("before the gradients of its layers are complete");
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

  absl::Status IsOfAGroup(const Action& a) const {
    const int groups = plan_.groups_size();
    if (a.group() >= 0 && a.group() < groups) return absl::OkStatus();
    return Broken(absl::StrCat("there are ", groups, " groups"));
  }

  absl::Status Reduction(const Action& a) {
    RETURN_IF_ERROR(IsOfAGroup(a));
    if (!Reduces(end_, plan_.groups(a.group()))) return Broken("another list reduces it");
    int& stage = reduced_[a.group()];
    const int wanted = a.op() == Action::OFFER ? 0 : a.op() == Action::REDUCE ? 1 : 2;
    if (stage != wanted) return Broken("out of order");
    if (a.op() == Action::OFFER) RETURN_IF_ERROR(Complete(plan_.groups(a.group())));
    if (a.op() == Action::COLLECT && plan_.groups(a.group()).rule() != GroupPlan::SHARDED)
      return Broken("only a sharded group is collected");
    ++stage;
    offered_ = true;
    return absl::OkStatus();
  }

  // What comes is in the vote of the rank: it may be no numbers.
  absl::Status Exchange(const Action& a) {
    RETURN_IF_ERROR(IsOfAGroup(a));
    if (!Exchanges(end_, plan_.groups(a.group()))) return Broken("it exchanges no slices");
    int& stage = reduced_[a.group()];
    if (stage != (a.op() == Action::DEAL ? 0 : 1)) return Broken("out of order");
    if (voted_) return Broken("after its own vote");
    ++stage;
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
  const std::map<int, int> pieces_;  // of each micro-batch's backward pass
  size_t at_ = 0;
  std::map<int, int> backward_;  // how many are done
  std::map<int, int> done_;      // of each micro-batch: bits of what was done
  std::map<int, int> reduced_;   // of each group: how far it is
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
    if (Streams(plan)) agree.back() = AgreementsOfRounds(plan, r);
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
