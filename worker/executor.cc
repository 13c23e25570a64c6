#include "worker/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/model/family.h"
#include "proto/model/recipe.h"
#include "proto/plan/actions.h"
#include "worker/link/frames.h"

namespace isthmus::worker {
namespace {

constexpr int64_t kMaxSkipsInARow = 10;

// SessionPlan::Make refuses a list with an action that has no place in it.
[[noreturn]] void Unexpected(const Action& action) {
  Fatal(__FILE__, __LINE__, absl::StrCat("unexpected action: ", action.ShortDebugString()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const SessionPlan& plan,
                                                         ExecutorOptions options, int64_t skipped) {
  std::unique_ptr<Executor> executor(new Executor(plan, std::move(options), skipped));
  executor->groups_.resize(plan.plan().groups_size());
  std::shared_ptr<DeviceLane> lane;  // of all groups: the compute thread uses them in turn
  for (int g : plan.groups()) {
    if (plan.plan().groups(g).value() == GroupPlan::SLICE) {
      ASSIGN_OR_RETURN(executor->slices_,
                       SliceExchange::Make(plan, g, executor->o_.stage->OfSlice()));
      continue;
    }
    const bool on_device = ReducesOnDevice(plan.plan().groups(g));
    if (on_device && lane == nullptr && executor->o_.make_lane != nullptr) {
      ASSIGN_OR_RETURN(lane, executor->o_.make_lane());
    }
    ASSIGN_OR_RETURN(executor->groups_[g], GroupReduction::Make(plan, g, executor->o_.states,
                                                                on_device ? lane : nullptr));
  }
  if (!plan.reads_data()) return executor;
  const Corpus& corpus = *executor->o_.corpus;
  const RecipeSpec& recipe = plan.job().recipe();
  if (corpus.context() != plan.job().model().context()) {
    return absl::InternalError(absl::StrCat("the corpus was cut into samples of ", corpus.context(),
                                            " tokens, the model has ",
                                            plan.job().model().context()));
  }
  if (corpus.train_samples() < recipe.global_batch()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text ", plan.job().data().path(), " holds ", corpus.train_samples(),
        " training samples, one step needs ", recipe.global_batch(),
        ": use a longer text, a shorter model.context or a smaller recipe.global_batch"));
  }
  executor->order_ = std::make_unique<SampleOrder>(plan.MakeOrder(corpus.train_samples()));
  return executor;
}

Executor::Executor(const SessionPlan& plan, ExecutorOptions options, int64_t skipped)
    : plan_(plan),
      o_(std::move(options)),
      pieces_(BackwardPieces(TrainOf(plan.plan(), plan.rank()))),
      micros_(std::max(plan.micros(), plan.eval_micros())),
      slots_(plan.overlaps() ? 2 * micros_ : micros_),
      weights_(plan, o_.stage->OnDevice() != nullptr),
      agreement_(NextAgreement(plan.plan(), plan.plan().start_step(), false)),
      skipped_(skipped) {}

void Executor::Begin(int64_t step) {
  step_ = step;
  agreeing_ = false;
  wishes_.reset();
  heard_.reset();
  result_ = StepResult();
  result_.groups.resize(groups_.size());
  result_.learning_rate = LearningRate(plan_.job().recipe(), plan_.plan().phase_start(), step);
}

void Executor::BeginPasses(int64_t step) {
  StepState& state = states_[step % 2];
  state = StepState();
  state.step = step;
  if (order_ != nullptr) state.ids = order_->Step(step);
  const size_t begin = plan_.overlaps() ? static_cast<size_t>(step % 2) * micros_ : 0;
  for (int m = 0; m < micros_; ++m) slots_[begin + m] = Slot();
}

absl::StatusOr<StepResult> Executor::RunStep(int64_t step) {
  Begin(step);
  RETURN_IF_ERROR(TakeHashes(step));
  if (slices_ != nullptr) slices_->BeginStep();
  if (!plan_.overlaps()) {
    BeginPasses(step);
    RETURN_IF_ERROR(Follow(plan_.mine().train(), Ahead::kToo));
  } else {
    RETURN_IF_ERROR(Fill(step));
    draining_ = plan_.DrainsAfter(step) || drained_ == step;
    if (!draining_) BeginPasses(step + 1);
    for (const Port& port : o_.ports) {
      if (port.in == nullptr) continue;
      port.in->StepBegins(draining_);
      if (!draining_) port.in->StepDecided(step, false);
    }
    RETURN_IF_ERROR(Follow(plan_.mine().train(), draining_ ? Ahead::kNot : Ahead::kToo));
    filled_ = !draining_;
  }
  if (plan_.local()) RETURN_IF_ERROR(Agree(step));
  result_.loss = states_[step % 2].loss_sum / static_cast<double>(plan_.tokens_per_step());
  return result_;
}

// Passes of `step` that its own list does not have: those that the list before it would have.
absl::Status Executor::Fill(int64_t step) {
  if (filled_) return absl::OkStatus();
  RETURN_IF_ERROR(o_.stage->BeginOverlapped());
  BeginPasses(step);
  step_ = step - 1;
  filling_ = true;
  RETURN_IF_ERROR(Follow(plan_.mine().train(), Ahead::kOnly));
  filling_ = false;
  step_ = step;
  return absl::OkStatus();
}

absl::Status Executor::Follow(const google::protobuf::RepeatedPtrField<Action>& list, Ahead ahead) {
  for (const Action& action : list) {
    if (action.ahead() != 0 ? ahead == Ahead::kNot : ahead == Ahead::kOnly) continue;
    RETURN_IF_ERROR(Do(action));
    ++*o_.progress;
  }
  return absl::OkStatus();
}

absl::Status Executor::Do(const Action& action) {
  switch (action.op()) {
    case Action::FWD:
      return Forward(action, true);
    case Action::BWD:
      return Backward(action);
    case Action::SEND:
      return Send(action);
    case Action::RECV:
      return Receive(action);
    case Action::OFFER:
    case Action::REDUCE:
    case Action::COLLECT:
      return Reduction(action);
    case Action::DEAL:
    case Action::MERGE:
      return Exchange(action);
    case Action::DECIDE: {
      ScopedTimer timer(&result_.times.sync_ns);
      return Decided(MakeDecision(), -1);
    }
    case Action::STEP:
      return Step();
    case Action::OUTER:
      return Outer();
    default:
      Unexpected(action);
  }
}

absl::Status Executor::Send(const Action& action) {
  switch (action.what()) {
    case FrameHeader::ACTIVATION:
    case FrameHeader::EVAL_ACTIVATION:
      return SendActivation(action);
    case FrameHeader::GRADIENT:
      return SendGradient(action);
    default:
      break;
  }
  ScopedTimer timer(&result_.times.sync_ns);
  switch (action.what()) {
    case FrameHeader::BUFFER_HASH:
      return o_.ports[action.link()].out->Push(NewFrame(FrameHeader::BUFFER_HASH, step_, 0));
    case FrameHeader::VOTE:
      Wish();
      return SendVote(action, OwnVote());
    case FrameHeader::DECISION:
      return SendVote(action, result_.decision);
    default:
      Unexpected(action);
  }
}

absl::Status Executor::Receive(const Action& action) {
  switch (action.what()) {
    case FrameHeader::ACTIVATION:
    case FrameHeader::EVAL_ACTIVATION:
      return ReceiveActivation(action);
    case FrameHeader::GRADIENT:
      return ReceiveGradient(action);
    case FrameHeader::BUFFER_HASH:
    case FrameHeader::VOTE:
    case FrameHeader::DECISION:
      break;
    default:
      Unexpected(action);
  }
  ScopedTimer timer(&result_.times.sync_ns);
  if (action.what() == FrameHeader::VOTE) Wish();
  ASSIGN_OR_RETURN(const Inbound item, Pop(o_.ports[action.link()], action.what(), step_, 0));
  if (action.what() == FrameHeader::BUFFER_HASH) return absl::OkStatus();  // the inlet compared it
  const Vote& vote = item.header.vote();
  if (action.what() == FrameHeader::DECISION) return Decided(vote, action.link());
  heard_ = heard_.has_value() ? MergeVotes(*heard_, vote) : vote;
  return absl::OkStatus();
}

// The ranks that read data do so themselves, in the same order.
void Executor::FillIds(const Action& action, bool train) {
  const int micro = action.micro();
  std::vector<uint32_t>& ids = SlotFor(action).ids;
  if (!train) {
    ids = EvalIds(micro);
    return;
  }
  const int64_t begin = static_cast<int64_t>(micro) * plan_.job().recipe().micro_batch();
  const auto first = StateOf(action).ids.begin() + begin;
  ids.assign(first, first + plan_.samples(micro));
}

absl::StatusOr<Inbound> Executor::Pop(const Port& port, FrameHeader::Kind kind, int64_t step,
                                      int micro) {
  TraceScope span(o_.tracer, step, {TraceSpan::WAIT, micro, &port.out->link_plan(), -1, kind});
  absl::StatusOr<Inbound> item = port.in->Pop(plan_.timeout(step));
  if (!item.ok())
    return Annotate(item.status(), absl::StrCat("waiting for the ", FrameName(kind, step, micro)));
  if (item->header.kind() != kind || item->header.micro() != micro) {
    return absl::InternalError(
        absl::StrCat("the inlet gave the ",
                     FrameName(item->header.kind(), item->header.step(), item->header.micro()),
                     " for the ", FrameName(kind, step, micro)));
  }
  return item;
}

Outbound Executor::NewFrame(FrameHeader::Kind kind, int64_t step, int micro) const {
  Outbound item;
  item.header.set_kind(kind);
  item.header.set_step(step);
  item.header.set_micro(micro);
  item.timeout = plan_.timeout(step);
  return item;
}

absl::Status Executor::PushTimed(const Port& port, Outbound item) {
  const std::string name = FrameName(item.header.kind(), item.header.step(), item.header.micro());
  ScopedTimer timer(&result_.times.send_wait_ns);
  TraceScope span(
      o_.tracer, item.header.step(),
      {TraceSpan::WAIT, item.header.micro(), &port.out->link_plan(), -1, item.header.kind()});
  return Annotate(port.out->Push(std::move(item)), absl::StrCat("sending the ", name));
}

absl::Status Executor::ReceiveActivation(const Action& action) {
  ScopedTimer timer(&result_.times.recv_wait_ns);
  const int micro = action.micro();
  const bool train = action.what() == FrameHeader::ACTIVATION;
  ASSIGN_OR_RETURN(Inbound item,
                   Pop(o_.ports[action.link()], action.what(), StepOf(action), micro));
  Slot& slot = SlotFor(action);
  slot.ids.assign(item.header.sample_ids().begin(), item.header.sample_ids().end());
  slot.activation = std::move(item.tensor);
  slot.token_ids = std::move(item.token_ids);
  slot.indices = std::move(item.indices);
  slot.leave = item.header.vote().stop();
  if (!plan_.has_head() || slot.leave) return absl::OkStatus();
  const std::vector<uint32_t> theirs = slot.ids;
  FillIds(action, train);
  if (theirs == slot.ids) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ", FrameName(item.header.kind(), StepOf(action), micro),
                   " is of other samples than the last stage reads: ", plan_.job().data().path(),
                   " is not the same file on the first stage's host and on this one"));
}

absl::Status Executor::Forward(const Action& action, bool train) {
  Slot& slot = SlotFor(action);
  if (plan_.embeds()) FillIds(action, train);
  MicroBatch batch;
  batch.micro = SlotOf(action);
  batch.ahead = action.ahead() != 0 && !filling_;
  batch.samples = slot.ids.size();
  batch.positions = plan_.job().model().context();
  // Of what the optimiser sees: the whole batch, or what its replica takes of it.
  const int64_t samples =
      plan_.local() ? plan_.share().count() : plan_.job().recipe().global_batch();
  batch.loss_scale = 1.0 / static_cast<double>(samples * batch.positions);
  batch.train = train;
  batch.late_loss = train;
  if (batch.samples == 0) {  // a validation micro-batch beyond the last sample
    if (!plan_.has_head()) slot.activation = Tensor{plan_.boundary_dims(*plan_.above(), 0), {}};
    return absl::OkStatus();
  }
  if (plan_.embeds() || plan_.has_head()) {
    const int64_t inputs = InputsOf(plan_.job().model());
    tokens_.resize(batch.samples * inputs);
    targets_.resize(batch.samples * batch.positions);
    for (int64_t i = 0; i < batch.samples; ++i) {
      RETURN_IF_ERROR(o_.corpus->Read(slot.ids[i], tokens_.data() + i * inputs,
                                      targets_.data() + i * batch.positions));
    }
    if (plan_.embeds()) batch.tokens = tokens_;
    if (plan_.embeds() && plan_.passes_token_ids())
      slot.token_ids.assign(tokens_.begin(), tokens_.end());
    if (plan_.has_head()) batch.targets = targets_;
  }
  ScopedTimer timer(&result_.times.compute_ns);
  TraceScope span(o_.tracer, StepOf(action), {TraceSpan::FORWARD, action.micro()});
  ASSIGN_OR_RETURN(ForwardResult out, o_.stage->Forward(batch, std::move(slot.activation)));
  slot.activation = std::move(out.activation);
  if (!plan_.has_head()) return absl::OkStatus();
  slot.late_loss = std::move(out.late_loss);
  StateOf(action).correct += std::max<int64_t>(0, out.correct);
  if (slot.late_loss == nullptr) AddLoss(out.loss_sum, &StateOf(action));
  return absl::OkStatus();
}

void Executor::AddLoss(double loss, StepState* step) {
  step->loss_sum += loss;
  if (!std::isfinite(loss)) step->finite = false;
}

absl::Status Executor::SendActivation(const Action& action) {
  Slot& slot = SlotFor(action);
  Outbound item = NewFrame(action.what(), StepOf(action), action.micro());
  item.header.mutable_sample_ids()->Add(slot.ids.begin(), slot.ids.end());
  item.tensor = std::move(slot.activation);
  item.token_ids = slot.token_ids;
  return PushTimed(o_.ports[action.link()], std::move(item));
}

absl::Status Executor::ReceiveGradient(const Action& action) {
  ScopedTimer timer(&result_.times.recv_wait_ns);
  const int micro = action.micro();
  ASSIGN_OR_RETURN(Inbound item,
                   Pop(o_.ports[action.link()], FrameHeader::GRADIENT, StepOf(action), micro));
  Slot& slot = SlotFor(action);
  const auto& ids = item.header.sample_ids();
  if (!std::equal(ids.begin(), ids.end(), slot.ids.begin(), slot.ids.end())) {
    return absl::DataLossError(absl::StrCat("the ",
                                            FrameName(FrameHeader::GRADIENT, StepOf(action), micro),
                                            " is of other samples than its activation"));
  }
  slot.gradient = std::move(item.tensor);
  return absl::OkStatus();
}

absl::Status Executor::Backward(const Action& action) {
  ScopedTimer timer(&result_.times.compute_ns);
  TraceScope span(o_.tracer, StepOf(action), {TraceSpan::BACKWARD, action.micro()});
  Slot& slot = SlotFor(action);
  const int micro = SlotOf(action), pieces = pieces_.at(action.micro());
  if (pieces == 1) {
    ASSIGN_OR_RETURN(slot.gradient, o_.stage->Backward(micro, std::move(slot.gradient)));
  } else {
    ASSIGN_OR_RETURN(slot.gradient,
                     o_.stage->BackwardPiece(micro, slot.pieces++, std::move(slot.gradient)));
    if (slot.pieces < pieces) return absl::OkStatus();
  }
  if (slot.late_loss == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const double loss, slot.late_loss());
  slot.late_loss = nullptr;
  AddLoss(loss, &StateOf(action));
  return absl::OkStatus();
}

absl::Status Executor::SendGradient(const Action& action) {
  Slot& slot = SlotFor(action);
  Outbound item = NewFrame(FrameHeader::GRADIENT, StepOf(action), action.micro());
  item.header.mutable_sample_ids()->Add(slot.ids.begin(), slot.ids.end());
  item.tensor = std::move(slot.gradient);
  item.token_ids = std::move(slot.token_ids);
  item.indices = std::move(slot.indices);
  return PushTimed(o_.ports[action.link()], std::move(item));
}

absl::Status Executor::SendVote(const Action& action, const Vote& vote) {
  Outbound item = NewFrame(action.what(), step_, 0);
  *item.header.mutable_vote() = vote;
  return Annotate(o_.ports[action.link()].out->Push(std::move(item)),
                  absl::StrCat("sending the ", FrameName(action.what(), step_, 0)));
}

// Before it waits for others' votes: the store may end meanwhile. A step that a replica makes by
// itself is no place to stop or to store.
void Executor::Wish() {
  if (wishes_.has_value()) return;
  wishes_ = plan_.local() && !agreeing_ ? StepRequests() : o_.requests(step_);
}

Vote Executor::OwnVote() {
  wishes_->finite = states_[step_ % 2].finite;
  GradientNorm norm;
  if (!agreeing_) norm = o_.stage->Norm();
  // The same gradients count elsewhere.
  if (!plan_.local() && !plan_.stands_for_stage()) norm.sum_squares = 0;
  return CombineVote(heard_.has_value() ? &*heard_ : nullptr, norm, *wishes_);
}

Vote Executor::MakeDecision() {
  Wish();
  const Vote all = OwnVote();
  if (plan_.local() && !agreeing_) return Decide(all, false, false);
  const Vote decision =
      DecideLocal(Decide(all, o_.checkpoint_due(step_, all), step_ + 1 >= plan_.end_step()),
                  o_.local_due != nullptr && o_.local_due(step_));
  // Passes of the next step are under way, a fragment alone is agreed on, or the model stays cut:
  // what was asked for comes after that step, or at the end of a round.
  const bool later = plan_.overlaps() ? !draining_ : agreeing_ && !agreement_.settles();
  return later ? DrainFirst(decision) : decision;
}

// `from_link`: it came over that link; -1: it was made here.
absl::Status Executor::Decided(const Vote& decision, int from_link) {
  result_.decision = decision;
  if (decision.drain()) drained_ = step_ + 1;
  if (!decision.stop()) return absl::OkStatus();
  // Before another rank can know of it and end its links.
  for (size_t l = 0; l < o_.ports.size(); ++l) {
    if (o_.ports[l].in != nullptr && static_cast<int>(l) != from_link) o_.ports[l].in->ExpectEnd();
  }
  return absl::OkStatus();
}

// The states of the codecs belong to the checkpoint: nothing of the next step has passed them yet.
absl::Status Executor::TellCodecs() {
  const bool checkpoint = result_.decision.checkpoint();
  for (const Port& port : o_.ports) {
    // Where steps overlap it was told at the beginning of one that is not drained.
    if (port.in != nullptr && (!plan_.overlaps() || draining_))
      port.in->StepDecided(step_, checkpoint);
    if (checkpoint && port.out != nullptr)
      RETURN_IF_ERROR(port.out->SaveState(step_ + 1, plan_.timeout(step_)));
  }
  for (const auto& group : groups_) {
    if (checkpoint && group != nullptr) group->SaveStates(step_ + 1);
  }
  return absl::OkStatus();
}

absl::Status Executor::Step() {
  if (agreement_.apply != step_) {
    ScopedTimer timer(&result_.times.sync_ns);
    RETURN_IF_ERROR(TellCodecs());
  }
  ScopedTimer timer(&result_.times.compute_ns);
  TraceScope span(o_.tracer, step_, {TraceSpan::OPTIMISER});
  if (!result_.decision.commit()) {
    o_.stage->Discard();
    ++skipped_;
    if (++skipped_in_a_row_ < kMaxSkipsInARow) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        kMaxSkipsInARow,
        " steps in a row had a loss or gradients that are not finite: "
        "continue from the last checkpoint with a lower recipe.learning_rate or a milder codec"));
  }
  skipped_in_a_row_ = 0;
  OptimizerStep step;
  step.step = step_ + 1 - plan_.plan().phase_start() - skipped_;  // moments begin with the phase
  step.learning_rate = result_.learning_rate;
  step.gradient_scale =
      ClipScale(plan_.job().recipe().clip_norm(), std::sqrt(result_.decision.norm_sq()));
  if (FrozenAt(plan_.job(), step_)) step.frozen_after = plan_.job().recipe().optimizer_warmup();
  return o_.stage->Apply(step);
}

}  // namespace isthmus::worker
