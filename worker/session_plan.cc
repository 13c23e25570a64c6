#include "worker/session_plan.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/data/data_position.h"
#include "proto/plan/schedule.h"

namespace isthmus::worker {
namespace {

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the plan can't be run: ", what, ". This is a fault of the coordinator that made it"));
}

int CountForwards(const StagePlan& stage) {
  return std::count_if(stage.eval().begin(), stage.eval().end(),
                       [](const Action& a) { return a.op() == Action::FWD; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<const SessionPlan>> SessionPlan::Make(Plan plan, int stage) {
  if (stage < 0 || stage >= plan.stages_size()) {
    return Wrong(
        absl::StrCat("it has ", plan.stages_size(), " stages and this one would be stage ", stage));
  }
  std::unique_ptr<SessionPlan> made(new SessionPlan(std::move(plan), stage));
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
  const DataPosition& data = plan_.data();
  if (data.epoch() < 0 || data.offset() < 0 || data.samples() < data.offset())
    return Wrong("its position in the data can't be");
  const Deadlines& d = plan_.deadlines();
  if (d.open_ms() <= 0 || d.first_step_ms() <= 0 || d.step_ms() <= 0 || d.drain_ms() <= 0)
    return Wrong("a deadline is not set");
  micros_ = (recipe.global_batch() + recipe.micro_batch() - 1) / recipe.micro_batch();
  for (const LinkPlan& link : plan_.links()) {
    if (link.kind() == LinkPlan::BOUNDARY && link.upper() != link.lower() + 1) {
      return Wrong(absl::StrCat("boundary ", link.id(), " joins stages ", link.lower(), " and ",
                                link.upper()));
    }
    if (link.kind() == LinkPlan::TIED) {
      if (link.lower() == stage_ || link.upper() == stage_) tied_ = &link;
    } else if (link.upper() == stage_) {
      lower_ = &link;
    } else if (link.lower() == stage_) {
      upper_ = &link;
    }
  }
  if (!first() && lower_ == nullptr)
    return Wrong(absl::StrCat("there is no link below stage ", stage_));
  if (!last() && upper_ == nullptr)
    return Wrong(absl::StrCat("there is no link above stage ", stage_));
  const bool needs_tied = stages() > 1 && (first() || last());
  if (needs_tied != (tied_ != nullptr))
    return Wrong(absl::StrCat("the tied link of stage ", stage_,
                              needs_tied ? " is missing" : " should not be there"));
  RETURN_IF_ERROR(CheckCodecs());
  return CheckActions();
}

absl::Status SessionPlan::CheckCodecs() {
  bool known = true;  // the token ids, on the stage below the link
  for (const LinkPlan& link : plan_.links()) {
    if (link.kind() != LinkPlan::BOUNDARY) continue;
    const bool forward = NeedsTokenIds(link.forward());
    if ((forward && !known) || (NeedsTokenIds(link.backward()) && !forward)) {
      return Wrong(absl::StrCat(
          "predict on ", link.id(),
          " needs token ids, which only predict on every forward direction from the first "
          "stage on passes along"));
    }
    known = forward;
    if (link.lower() == 0) passes_token_ids_ = forward;
  }
  for (const LinkPlan* link : {lower_, upper_}) {
    if (link == nullptr) continue;
    for (const CodecSpec* spec : {&link->backward(), &link->evaluation()}) {
      if (spec->kind() == CodecSpec::AUTOENCODER)
        return Wrong(
            absl::StrCat("the autoencoder of ", link->id(), " is not on its forward side"));
    }
    for (const CodecSpec* spec : {&link->forward(), &link->evaluation()}) {
      if (NeedsPlaces(*spec))
        return Wrong(absl::StrCat("the kept of ", link->id(), " is not on its backward side"));
    }
    if (absl::Status s = CheckBound(link->forward(), link->backward()); !s.ok())
      return Wrong(absl::StrCat(link->id(), ": ", s.message()));
    if (IsStateful(link->evaluation()))
      return Wrong(absl::StrCat("the evaluation codec of ", link->id(), " keeps state"));
    for (const CodecSpec* spec : {&link->forward(), &link->backward(), &link->evaluation()}) {
      if (absl::Status s = ValidateCodec(*spec); !s.ok())
        return Wrong(absl::StrCat(link->id(), ": ", s.message()));
    }
  }
  if (!job().compression().tied().empty()) {
    ASSIGN_OR_RETURN(tied_codec_, ParseCodec(job().compression().tied()));
    if (IsStateful(tied_codec_)) return Wrong("the codec of the tied gradient keeps state");
    if (NeedsPlaces(tied_codec_)) return Wrong("the tied gradient has no places for a kept");
  }
  return absl::OkStatus();
}

absl::Status SessionPlan::CheckActions() {
  std::vector<StageActions> train;
  for (const StagePlan& stage : plan_.stages()) {
    train.emplace_back(stage.train().begin(), stage.train().end());
    const int passes = CountForwards(stage);
    if (stage.stage() == 0) eval_micros_ = passes;
    if (passes != eval_micros_) return Wrong("the stages' validation lists differ in length");
  }
  const RecipeSpec& r = job().recipe();
  if (static_cast<int64_t>(eval_micros_) * r.micro_batch() < r.eval_samples()) {
    return Wrong(absl::StrCat("the validation lists hold ", eval_micros_, " micro-batches for ",
                              r.eval_samples(), " samples"));
  }
  int limit = std::numeric_limits<int>::max();
  for (const LinkPlan& link : plan_.links()) limit = std::min(limit, queue_limit(link));
  if (absl::Status s = CheckSchedule(train, micros_, limit); !s.ok()) return Wrong(s.message());
  return absl::OkStatus();
}

int SessionPlan::queue_limit(const LinkPlan& link) const {
  return std::max(1, link.queue_limit() > 0 ? link.queue_limit() : job().strategy().queue_limit());
}

int64_t SessionPlan::samples(int micro) const {
  const RecipeSpec& r = job().recipe();
  return std::min<int64_t>(r.micro_batch(),
                           r.global_batch() - static_cast<int64_t>(micro) * r.micro_batch());
}

int64_t SessionPlan::tokens_per_step() const {
  return static_cast<int64_t>(job().recipe().global_batch()) * job().model().context();
}

SampleOrder SessionPlan::MakeOrder(int64_t train_samples) const {
  return SampleOrder(job().seed(), train_samples, job().recipe().global_batch(), plan_.start_step(),
                     StartOfData(plan_, train_samples));
}

bool SessionPlan::EvalAfter(int64_t step) const {
  const RecipeSpec& r = job().recipe();
  if (r.eval_samples() <= 0) return false;
  return step + 1 == r.steps() || (r.eval_every() > 0 && (step + 1) % r.eval_every() == 0);
}

bool SessionPlan::CheckpointAfter(int64_t step) const {
  const int64_t every = job().checkpoint().every();
  return every > 0 && (step + 1) % every == 0;
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
  // The stages above finish a validation pass before they turn to this step.
  const bool after_eval = EvalAfter(step) || EvalAfter(step - 1);
  if (after_eval) wait += wait * static_cast<double>(eval_micros()) / micros_;
  return wait;
}

std::string SessionPlan::Describe(int stage) const {
  const StagePlan& s = plan_.stages(stage);
  std::string text =
      absl::StrCat("stage ", stage, " (", s.node_name().empty() ? s.node_id() : s.node_name());
  if (!s.address().empty()) absl::StrAppend(&text, ", ", s.address());
  return text + ")";
}

std::string SessionPlan::DescribeLink(const LinkPlan& link) const {
  return absl::StrCat("link ", link.id(), " with ", Describe(peer_stage(link)));
}

}  // namespace isthmus::worker
