#include "worker/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/model/recipe.h"
#include "worker/link/frames.h"

namespace isthmus::worker {
namespace {

constexpr int64_t kMaxSkipsInARow = 10;

absl::Status Unexpected(absl::string_view what) {
  return absl::InternalError(absl::StrCat("unexpected action: ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const SessionPlan& plan,
                                                         ExecutorOptions options, int64_t skipped) {
  std::unique_ptr<Executor> executor(new Executor(plan, std::move(options), skipped));
  if (plan.tied() != nullptr) {
    ASSIGN_OR_RETURN(executor->tied_, TiedExchange::Make(plan, executor->o_.states));
  }
  if (!plan.first() && !plan.last()) return executor;
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
      slots_(std::max(plan.micros(), plan.eval_micros())),
      skipped_(skipped) {}

absl::Status Executor::Begin(int64_t step) {
  step_ = step;
  loss_sum_ = 0;
  finite_ = true;
  result_ = StepResult();
  result_.learning_rate = LearningRate(plan_.job().recipe(), step);
  for (Slot& slot : slots_) slot = Slot();
  if (order_ != nullptr) step_ids_ = order_->Step(step);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Executor::RunStep(int64_t step) {
  RETURN_IF_ERROR(Begin(step));
  for (const Action& action : plan_.mine().train()) {
    RETURN_IF_ERROR(Do(action));
    ++*o_.progress;
  }
  result_.loss = loss_sum_ / static_cast<double>(plan_.tokens_per_step());
  return result_;
}

absl::Status Executor::Do(const Action& action) {
  const int micro = action.micro();
  switch (action.op()) {
    case Action::RECV_ACT:
      return ReceiveActivation(micro, true);
    case Action::FWD:
      return Forward(micro, true, &loss_sum_);
    case Action::SEND_ACT:
      return SendActivation(micro, true);
    case Action::RECV_GRAD:
      return ReceiveGradient(micro);
    case Action::BWD:
      return Backward(micro);
    case Action::SEND_GRAD:
      return SendGradient(micro);
    case Action::SYNC:
      return Sync();
    case Action::STEP:
      return Step();
    default:
      return Unexpected("of an unknown kind");
  }
}

absl::StatusOr<EvalResult> Executor::RunEval(int64_t step) {
  RETURN_IF_ERROR(Begin(step));
  double loss_sum = 0;
  int64_t samples = 0;
  for (const Action& action : plan_.mine().eval()) {
    ASSIGN_OR_RETURN(const bool leaves, LeavesEval(action));
    if (leaves) return EvalResult();
    RETURN_IF_ERROR(DoEval(action, &loss_sum, &samples));
    ++*o_.progress;
  }
  EvalResult result;
  result.has_loss = plan_.last() && samples > 0;
  if (result.has_loss)
    result.loss = loss_sum / static_cast<double>(samples * plan_.job().model().context());
  return result;
}

// Stage 0 says it, the others hear it in place of the micro-batch's activation and pass it on.
absl::StatusOr<bool> Executor::LeavesEval(const Action& action) {
  if (action.op() != Action::FWD) return false;
  if (!(plan_.first() ? o_.leave_eval() : slots_[action.micro()].leave)) return false;
  if (plan_.last()) return true;
  Outbound item = NewFrame(FrameHeader::EVAL_ACTIVATION, action.micro());
  item.header.mutable_vote()->set_stop(true);
  item.tensor = Tensor{plan_.boundary_dims(*plan_.upper(), 0), {}};
  RETURN_IF_ERROR(PushTimed(o_.upper, std::move(item)));
  return true;
}

absl::Status Executor::DoEval(const Action& action, double* loss_sum, int64_t* samples) {
  const int micro = action.micro();
  switch (action.op()) {
    case Action::RECV_ACT:
      return ReceiveActivation(micro, false);
    case Action::SEND_ACT:
      return SendActivation(micro, false);
    case Action::FWD:
      RETURN_IF_ERROR(Forward(micro, false, loss_sum));
      *samples += slots_[micro].ids.size();
      return absl::OkStatus();
    default:
      return Unexpected("a training action in a validation pass");
  }
}

// First and last stage read the data themselves, in the same order.
void Executor::FillIds(int micro, bool train) {
  std::vector<uint32_t>& ids = slots_[micro].ids;
  if (!train) {
    ids = EvalIds(micro);
    return;
  }
  const int64_t begin = static_cast<int64_t>(micro) * plan_.job().recipe().micro_batch();
  ids.assign(step_ids_.begin() + begin, step_ids_.begin() + begin + plan_.samples(micro));
}

std::vector<uint32_t> Executor::EvalIds(int micro) const {
  const RecipeSpec& recipe = plan_.job().recipe();
  const int64_t samples = std::min<int64_t>(recipe.eval_samples(), o_.corpus->validation_samples());
  const int64_t begin =
      std::min<int64_t>(samples, static_cast<int64_t>(micro) * recipe.micro_batch());
  const int64_t end = std::min<int64_t>(samples, begin + recipe.micro_batch());
  std::vector<uint32_t> ids;
  for (int64_t i = begin; i < end; ++i)
    ids.push_back(static_cast<uint32_t>(o_.corpus->train_samples() + i));
  return ids;
}

absl::StatusOr<Inbound> Executor::Pop(const Port& port, FrameHeader::Kind kind, int micro) {
  absl::StatusOr<Inbound> item = port.in->Pop(plan_.timeout(step_));
  if (!item.ok())
    return Annotate(item.status(), absl::StrCat("waiting for the ", FrameName(kind, step_, micro)));
  if (item->header.kind() != kind || item->header.micro() != micro) {
    return absl::InternalError(
        absl::StrCat("the inlet gave the ",
                     FrameName(item->header.kind(), item->header.step(), item->header.micro()),
                     " for the ", FrameName(kind, step_, micro)));
  }
  return item;
}

Outbound Executor::NewFrame(FrameHeader::Kind kind, int micro) const {
  Outbound item;
  item.header.set_kind(kind);
  item.header.set_step(step_);
  item.header.set_micro(micro);
  item.timeout = plan_.timeout(step_);
  return item;
}

absl::Status Executor::PushTimed(const Port& port, Outbound item) {
  const std::string name = FrameName(item.header.kind(), item.header.step(), item.header.micro());
  ScopedTimer timer(&result_.times.send_wait_ns);
  return Annotate(port.out->Push(std::move(item)), absl::StrCat("sending the ", name));
}

absl::Status Executor::ReceiveActivation(int micro, bool train) {
  ScopedTimer timer(&result_.times.recv_wait_ns);
  ASSIGN_OR_RETURN(
      Inbound item,
      Pop(o_.lower, train ? FrameHeader::ACTIVATION : FrameHeader::EVAL_ACTIVATION, micro));
  Slot& slot = slots_[micro];
  slot.ids.assign(item.header.sample_ids().begin(), item.header.sample_ids().end());
  slot.activation = std::move(item.tensor);
  slot.token_ids = std::move(item.token_ids);
  slot.places = std::move(item.places);
  slot.leave = item.header.vote().stop();
  if (!plan_.last() || slot.leave) return absl::OkStatus();
  const std::vector<uint32_t> theirs = slot.ids;
  FillIds(micro, train);
  if (theirs == slot.ids) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ", FrameName(item.header.kind(), step_, micro),
      " is of other samples than the last stage reads: ", plan_.job().data().path(),
      " is not the same file on ", plan_.Describe(0), " and ", plan_.Describe(plan_.stage())));
}

absl::Status Executor::Forward(int micro, bool train, double* loss_sum) {
  Slot& slot = slots_[micro];
  if (plan_.first()) FillIds(micro, train);
  MicroBatch batch;
  batch.micro = micro;
  batch.samples = slot.ids.size();
  batch.positions = plan_.job().model().context();
  batch.loss_scale = 1.0 / static_cast<double>(plan_.tokens_per_step());
  batch.train = train;
  if (batch.samples == 0) {  // a validation micro-batch beyond the last sample
    if (!plan_.last()) slot.activation = Tensor{plan_.boundary_dims(*plan_.upper(), 0), {}};
    return absl::OkStatus();
  }
  if (plan_.first() || plan_.last()) {
    const size_t tokens = batch.samples * batch.positions;
    tokens_.resize(tokens);
    targets_.resize(tokens);
    for (int64_t i = 0; i < batch.samples; ++i) {
      RETURN_IF_ERROR(o_.corpus->Read(slot.ids[i], tokens_.data() + i * batch.positions,
                                      targets_.data() + i * batch.positions));
    }
    if (plan_.first()) batch.tokens = tokens_;
    if (plan_.first() && plan_.passes_token_ids())
      slot.token_ids.assign(tokens_.begin(), tokens_.end());
    if (plan_.last()) batch.targets = targets_;
  }
  ScopedTimer timer(&result_.times.compute_ns);
  ASSIGN_OR_RETURN(ForwardResult out, o_.stage->Forward(batch, std::move(slot.activation)));
  slot.activation = std::move(out.activation);
  if (!plan_.last()) return absl::OkStatus();
  *loss_sum += out.loss_sum;
  if (!std::isfinite(out.loss_sum)) finite_ = false;
  return absl::OkStatus();
}

absl::Status Executor::SendActivation(int micro, bool train) {
  Slot& slot = slots_[micro];
  Outbound item = NewFrame(train ? FrameHeader::ACTIVATION : FrameHeader::EVAL_ACTIVATION, micro);
  item.header.mutable_sample_ids()->Add(slot.ids.begin(), slot.ids.end());
  item.tensor = std::move(slot.activation);
  item.token_ids = slot.token_ids;
  return PushTimed(o_.upper, std::move(item));
}

absl::Status Executor::ReceiveGradient(int micro) {
  ScopedTimer timer(&result_.times.recv_wait_ns);
  ASSIGN_OR_RETURN(Inbound item, Pop(o_.upper, FrameHeader::GRADIENT, micro));
  Slot& slot = slots_[micro];
  const auto& ids = item.header.sample_ids();
  if (!std::equal(ids.begin(), ids.end(), slot.ids.begin(), slot.ids.end())) {
    return absl::DataLossError(absl::StrCat("the ", FrameName(FrameHeader::GRADIENT, step_, micro),
                                            " is of other samples than its activation"));
  }
  slot.gradient = std::move(item.tensor);
  return absl::OkStatus();
}

absl::Status Executor::Backward(int micro) {
  ScopedTimer timer(&result_.times.compute_ns);
  Slot& slot = slots_[micro];
  ASSIGN_OR_RETURN(slot.gradient, o_.stage->Backward(micro, std::move(slot.gradient)));
  return absl::OkStatus();
}

absl::Status Executor::SendGradient(int micro) {
  Slot& slot = slots_[micro];
  Outbound item = NewFrame(FrameHeader::GRADIENT, micro);
  item.header.mutable_sample_ids()->Add(slot.ids.begin(), slot.ids.end());
  item.tensor = std::move(slot.gradient);
  item.token_ids = std::move(slot.token_ids);
  item.places = std::move(slot.places);
  return PushTimed(o_.lower, std::move(item));
}

absl::Status Executor::SendHash(const Port& port) {
  if (port.out == nullptr || !SendsBufferHash(plan_, port.out->link_plan(), port.out->up()))
    return absl::OkStatus();
  return port.out->Push(NewFrame(FrameHeader::BUFFER_HASH, 0));
}

absl::Status Executor::SendVote(const Port& port, FrameHeader::Kind kind, const Vote& vote) {
  Outbound item = NewFrame(kind, 0);
  *item.header.mutable_vote() = vote;
  return Annotate(port.out->Push(std::move(item)),
                  absl::StrCat("sending the ", FrameName(kind, step_, 0)));
}

// The last stage's vote does not depend on the tied sum (it counts on the first stage), so it
// leaves before the exchange is complete.
absl::Status Executor::Sync() {
  ScopedTimer timer(&result_.times.sync_ns);
  RETURN_IF_ERROR(SendHash(o_.upper));
  RETURN_IF_ERROR(SendHash(o_.lower));
  if (tied_ != nullptr) {
    ASSIGN_OR_RETURN(Tensor mine, o_.stage->TiedGradient());
    Outbound frame = NewFrame(FrameHeader::TIED_GRADIENT, 0);
    RETURN_IF_ERROR(tied_->Offer(std::move(mine), step_, &frame));
    RETURN_IF_ERROR(o_.tied.out->Push(std::move(frame)));
  }
  const auto exchange = [this]() -> absl::Status {
    if (tied_ == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(Inbound item, Pop(o_.tied, FrameHeader::TIED_GRADIENT, 0));
    ASSIGN_OR_RETURN(const Tensor sum, tied_->Add(std::move(item.tensor)));
    return o_.stage->SetTiedGradient(sum);
  };
  if (plan_.first()) RETURN_IF_ERROR(exchange());
  StepRequests requests = o_.requests(step_);
  requests.finite = finite_;
  Vote above;
  if (!plan_.last()) {
    ASSIGN_OR_RETURN(const Inbound item, Pop(o_.upper, FrameHeader::VOTE, 0));
    above = item.header.vote();
  }
  const Vote vote = CombineVote(plan_.last() ? nullptr : &above, o_.stage->Norm(), requests);
  if (plan_.first())
    return Decision(Decide(vote, o_.checkpoint_due(step_, vote), step_ + 1 >= plan_.end_step()));
  RETURN_IF_ERROR(SendVote(o_.lower, FrameHeader::VOTE, vote));
  if (plan_.last()) RETURN_IF_ERROR(exchange());
  ASSIGN_OR_RETURN(const Inbound item, Pop(o_.lower, FrameHeader::DECISION, 0));
  return Decision(item.header.vote());
}

absl::Status Executor::Decision(const Vote& all) {
  result_.decision = all;
  if (all.stop()) EndInlets();  // before the stage above can know of it and end its links
  if (!plan_.last()) RETURN_IF_ERROR(SendVote(o_.upper, FrameHeader::DECISION, all));
  return TellCodecs(all.checkpoint());
}

// The states of the codecs belong to the checkpoint: nothing of the next step has passed them yet.
absl::Status Executor::TellCodecs(bool checkpoint) {
  for (const Port* port : {&o_.lower, &o_.upper, &o_.tied}) {
    if (port->in != nullptr) port->in->StepDecided(step_, checkpoint);
    if (checkpoint && port->out != nullptr)
      RETURN_IF_ERROR(port->out->SaveState(step_ + 1, plan_.timeout(step_)));
  }
  if (checkpoint && tied_ != nullptr) tied_->encoder()->Save(step_ + 1);
  return absl::OkStatus();
}

void Executor::EndInlets() {
  if (o_.upper.in != nullptr) o_.upper.in->ExpectEnd();
  if (o_.tied.in != nullptr) o_.tied.in->ExpectEnd();
}

absl::Status Executor::Step() {
  ScopedTimer timer(&result_.times.compute_ns);
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
  step.step = step_ + 1 - skipped_;
  step.learning_rate = result_.learning_rate;
  step.gradient_scale =
      ClipScale(plan_.job().recipe().clip_norm(), std::sqrt(result_.decision.norm_sq()));
  return o_.stage->Apply(step);
}

}  // namespace isthmus::worker
