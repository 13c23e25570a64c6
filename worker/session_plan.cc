#include "worker/session_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/data/data_position.h"
#include "proto/plan/action_check.h"
#include "proto/plan/actions.h"
#include "proto/plan/deal.h"
#include "proto/plan/epilogue.h"
#include "proto/plan/groups.h"
#include "proto/plan/local_checkpoints.h"
#include "proto/plan/overlap.h"

namespace isthmus::worker {
namespace {

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the plan can't be run: ", what, ". This is a fault of the coordinator that made it"));
}

// Of two links that end at one rank, the one that every rank opens first.
bool OpensBefore(const LinkPlan& a, const LinkPlan& b) {
  const bool a_boundary = a.kind() == LinkPlan::BOUNDARY;
  const bool b_boundary = b.kind() == LinkPlan::BOUNDARY;
  if (a_boundary != b_boundary) return a_boundary;
  const auto ends = [](const LinkPlan& l) { return std::make_pair(l.lower(), l.upper()); };
  return a_boundary ? ends(b) < ends(a) : ends(a) < ends(b);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const SessionPlan>> SessionPlan::Make(Plan plan, int rank) {
  if (rank < 0 || rank >= plan.ranks_size())
    return Wrong(absl::StrCat("it has ", plan.ranks_size(), " ranks and this one would be ", rank));
  std::unique_ptr<SessionPlan> made(new SessionPlan(std::move(plan), rank));
  RETURN_IF_ERROR(made->Check());
  return made;
}

absl::Status SessionPlan::Check() {
  const RecipeSpec& recipe = job().recipe();
  const ModelSpec& model = job().model();
  if (model.context() <= 0 || model.hidden() <= 0 || model.vocabulary() <= 0)
    return Wrong("the model has no size");
  if (recipe.micro_batch() <= 0 || recipe.global_batch() < recipe.micro_batch())
    return Wrong("the batch has no size");
  if (plan_.start_step() < 0 || plan_.start_step() > recipe.steps()) {
    return Wrong(absl::StrCat("it starts at step ", plan_.start_step(), " of ", recipe.steps()));
  }
  if (plan_.phase_start() < 0 || plan_.phase_start() > plan_.start_step() ||
      (begins_phase() && !plan_.from_checkpoint())) {
    return Wrong(absl::StrCat("it starts at step ", plan_.start_step(), " of phase ",
                              plan_.phase() + 1, ", which begins after ", plan_.phase_start()));
  }
  const DataPosition& data = plan_.data();
  if (data.epoch() < 0 || data.offset() < 0 || data.samples() < data.offset())
    return Wrong("its position in the data can't be");
  const Deadlines& d = plan_.deadlines();
  if (d.open_ms() <= 0 || d.first_step_ms() <= 0 || d.step_ms() <= 0 || d.drain_ms() <= 0)
    return Wrong("a deadline is not set");
  for (const RankPlan& rank : plan_.ranks()) {
    if (rank.first_layer() < 0 || rank.end_layer() <= rank.first_layer() ||
        rank.end_layer() > model.layers()) {
      return Wrong(absl::StrCat("stage ", rank.stage(), " holds layers ", rank.first_layer(),
                                " to ", rank.end_layer(), " of ", model.layers()));
    }
  }
  stages_ = StagesOf(plan_);
  RETURN_IF_ERROR(CheckShares());
  RETURN_IF_ERROR(CheckLinks());
  RETURN_IF_ERROR(CheckCodecs());
  return CheckLists();
}

absl::Status SessionPlan::CheckShares() {
  const int64_t batch = job().recipe().global_batch();
  if (absl::Status s = CheckReplicas(plan_); !s.ok()) return Wrong(s.message());
  if (absl::Status s = CheckDeal(plan_); !s.ok()) return Wrong(s.message());
  share_ = ShareOf(plan_, mine().replica());
  local_every_ = LocalEvery(plan_);
  if (mine().buddy() < 0 || mine().buddy() > plan_.ranks_size() || mine().buddy() == rank_ + 1)
    return Wrong(absl::StrCat("the buddy of rank ", rank_, " is rank ", mine().buddy() - 1));
  stands_for_stage_ = StandsForStage(plan_, rank_);
  distinct_samples_ = SamplesOf(share_, plan_.train_samples(), batch).count();
  return absl::OkStatus();
}

absl::Status SessionPlan::CheckLinks() {
  for (const LinkPlan& link : plan_.links()) {
    const bool there = link.lower() >= 0 && link.lower() < plan_.ranks_size() &&
                       link.upper() >= 0 && link.upper() < plan_.ranks_size();
    const bool boundary = link.kind() == LinkPlan::BOUNDARY;
    if (!there ||
        (boundary ? plan_.ranks(link.lower()).end_layer() != plan_.ranks(link.upper()).first_layer()
                  : link.lower() >= link.upper())) {
      return Wrong(absl::StrCat(boundary ? "boundary " : "link ", link.id(), " joins ranks ",
                                link.lower(), " and ", link.upper()));
    }
    if (link.lower() != rank_ && link.upper() != rank_) continue;
    links_.push_back(&link);
    if (!boundary) continue;
    const LinkPlan*& mine = link.upper() == rank_ ? below_ : above_;
    if (mine != nullptr) return Wrong(absl::StrCat(link.id(), " and ", mine->id(), " are one"));
    mine = &link;
  }
  std::sort(links_.begin(), links_.end(),
            [](const LinkPlan* a, const LinkPlan* b) { return OpensBefore(*a, *b); });
  if (embeds() != (below_ == nullptr))
    return Wrong(absl::StrCat("stage ", mine().stage(),
                              embeds() ? " has a link below" : " has no link below"));
  if (has_head() != (above_ == nullptr))
    return Wrong(absl::StrCat("stage ", mine().stage(),
                              has_head() ? " has a link above" : " has no link above"));
  bool tied = false;
  for (int g = 0; g < plan_.groups_size(); ++g) {
    const GroupPlan& group = plan_.groups(g);
    if (absl::Status s = CheckGroup(plan_, group); !s.ok()) return Wrong(s.message());
    if (PositionIn(group, rank_) < 0) continue;
    groups_.push_back(g);
    tied = tied || (group.tensors() == GroupPlan::TIED && group.value() != GroupPlan::DIFFERENCE);
  }
  if (tied != HoldsTied(plan_, rank_))
    return Wrong(absl::StrCat("the tied group of stage ", mine().stage(),
                              tied ? " should not be there" : " is missing"));
  return absl::OkStatus();
}

absl::Status SessionPlan::CheckCodecs() {
  // The token ids are known on the ranks that embed, and above links whose codec passes them on.
  std::vector<bool> known(plan_.ranks_size());
  for (int r = 0; r < plan_.ranks_size(); ++r) known[r] = Embeds(plan_, r);
  for (const LinkPlan& link : plan_.links()) {
    if (link.kind() != LinkPlan::BOUNDARY) continue;
    const bool forward = NeedsTokenIds(link.forward());
    if ((forward && !known[link.lower()]) || (NeedsTokenIds(link.backward()) && !forward)) {
      return Wrong(absl::StrCat(
          "predict on ", link.id(),
          " needs token ids, which only predict on every forward direction from the first "
          "stage on passes along"));
    }
    known[link.upper()] = forward;
  }
  passes_token_ids_ = embeds() && above_ != nullptr && NeedsTokenIds(above_->forward());
  for (const LinkPlan* link : {below_, above_}) {
    if (link == nullptr) continue;
    for (const CodecSpec* spec : {&link->backward(), &link->evaluation()}) {
      if (spec->kind() == CodecSpec::AUTOENCODER)
        return Wrong(
            absl::StrCat("the autoencoder of ", link->id(), " is not on its forward side"));
    }
    for (const CodecSpec* spec : {&link->forward(), &link->evaluation()}) {
      if (NeedsIndices(*spec))
        return Wrong(absl::StrCat("the kept of ", link->id(), " is not on its backward side"));
    }
    if (absl::Status s = CheckBound(link->forward(), link->backward()); !s.ok())
      return Wrong(absl::StrCat(link->id(), ": ", s.message()));
    if (link->epilogue() && Overlaps(job()))
      return Wrong(absl::StrCat("steps that overlap have no epilogue, and ", link->id(), " does"));
    if (absl::Status s = CheckEpilogue(link->backward()); link->epilogue() && !s.ok())
      return Wrong(absl::StrCat(link->id(), ": ", s.message()));
    if (IsStateful(link->evaluation()))
      return Wrong(absl::StrCat("the evaluation codec of ", link->id(), " keeps state"));
    for (const CodecSpec* spec : {&link->forward(), &link->backward(), &link->evaluation()}) {
      if (absl::Status s = ValidateCodec(*spec); !s.ok())
        return Wrong(absl::StrCat(link->id(), ": ", s.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status SessionPlan::CheckLists() {
  micros_ = CountForwards(mine().train());
  for (const RankPlan& rank : plan_.ranks())
    eval_micros_ = std::max(eval_micros_, CountForwards(rank.eval()));
  const RecipeSpec& r = job().recipe();
  const int64_t wanted = (share_.count() + r.micro_batch() - 1) / r.micro_batch();
  if (micros_ != wanted)
    return Wrong(absl::StrCat("a step has ", micros_, " micro-batches, the batch is ", wanted));
  if (static_cast<int64_t>(eval_micros_) * r.micro_batch() < r.eval_samples()) {
    return Wrong(absl::StrCat("the validation lists hold ", eval_micros_, " micro-batches for ",
                              r.eval_samples(), " samples"));
  }
  if (absl::Status s = CheckActions(plan_); !s.ok()) return Wrong(s.message());
  if (below_ != nullptr) epilogue_below_ = EpilogueMicros(plan_, *below_);
  if (above_ != nullptr) epilogue_above_ = EpilogueMicros(plan_, *above_);
  return absl::OkStatus();
}

bool SessionPlan::CodesGradient(const LinkPlan& boundary, int micro) const {
  if (!boundary.epilogue()) return true;
  const std::vector<int>& coded = &boundary == below_ ? epilogue_below_ : epilogue_above_;
  return std::find(coded.begin(), coded.end(), micro) != coded.end();
}

int SessionPlan::queue_limit(const LinkPlan& link) const { return QueueLimit(plan_, link); }

int SessionPlan::index_of(const LinkPlan& link) const {
  for (int l = 0; l < plan_.links_size(); ++l) {
    if (&plan_.links(l) == &link) return l;
  }
  return -1;
}

const LinkPlan& SessionPlan::group_link(int peer) const {
  for (const LinkPlan* link : links_) {
    if (link->kind() == LinkPlan::GROUP && this->peer(*link) == peer) return *link;
  }
  Fatal(__FILE__, __LINE__, "a checked plan has a link between every two ranks of a group");
}

int64_t SessionPlan::samples(int micro) const {
  const RecipeSpec& r = job().recipe();
  return std::min<int64_t>(r.micro_batch(),
                           share_.count() - static_cast<int64_t>(micro) * r.micro_batch());
}

int64_t SessionPlan::tokens_per_step() const {
  return static_cast<int64_t>(job().recipe().global_batch()) * job().model().context();
}

SampleOrder SessionPlan::MakeOrder(int64_t train_samples) const {
  return SampleOrder(job().seed(), train_samples, job().recipe().global_batch(), plan_.start_step(),
                     StartOfData(plan_, train_samples), SampleOrder::kMostShuffled, share_);
}

absl::Duration SessionPlan::timeout(int64_t step) const {
  const Deadlines& d = plan_.deadlines();
  if (step == plan_.start_step()) {
    // Stages become ready one after the other: a neighbour may still be fetching its part of the
    // checkpoint.
    const int64_t fetch_ms = plan_.from_checkpoint() ? std::max(d.open_ms(), d.drain_ms()) : 0;
    return absl::Milliseconds(d.first_step_ms() + fetch_ms);
  }
  absl::Duration wait = absl::Milliseconds(d.step_ms());
  // A replica waits for one that made its steps in up to twice the time.
  if (streams() || RoundEndsAfter(plan_, step) || RoundEndsAfter(plan_, step - 1))
    wait += absl::Seconds(plan_.predicted_step_s()) *
            static_cast<double>(job().strategy().local_steps());
  // The stages above finish a validation pass before they turn to this step.
  const bool after_eval = EvalAfter(step) || EvalAfter(step - 1);
  if (after_eval) wait += wait * static_cast<double>(eval_micros()) / micros_;
  return wait;
}

std::string SessionPlan::Describe(int rank) const {
  const RankPlan& r = plan_.ranks(rank);
  std::string text = absl::StrCat(StageWords(plan_, rank), " (",
                                  r.node_name().empty() ? r.node_id() : r.node_name());
  if (!r.address().empty()) absl::StrAppend(&text, ", ", r.address());
  return text + ")";
}

std::string SessionPlan::DescribeLink(const LinkPlan& link) const {
  return absl::StrCat("link ", link.id(), " with ", Describe(peer(link)));
}

}  // namespace isthmus::worker
