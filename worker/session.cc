#include "worker/session.h"

#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/failure_cause.h"
#include "proto/model/family.h"
#include "proto/plan/local_checkpoints.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/local_pace.h"
#include "worker/executor.h"
#include "worker/failure.h"
#include "worker/indices_board.h"
#include "worker/link/inlet.h"
#include "worker/link/outlet.h"
#include "worker/link/state_exchange.h"
#include "worker/session_plan.h"
#include "worker/step_recorder.h"
#include "worker/step_tracer.h"

namespace isthmus::worker {
namespace {

// Inlet, outlet and link of one LinkPlan. The threads go before what they use.
struct Line {
  const LinkPlan* plan = nullptr;
  std::unique_ptr<IndicesBoard> indices;  // of the lower end, where gradients come by `kept`
  std::unique_ptr<LazyWatch> lazy;        // of the upper end, where they go by `lep` on the host
  std::unique_ptr<Link> link;
  std::unique_ptr<Inlet> in;
  std::unique_ptr<Outlet> out;
};

class SessionImpl : public Session {
 public:
  SessionImpl(std::unique_ptr<const SessionPlan> plan, SessionOptions options)
      : plan_(std::move(plan)),
        o_(std::move(options)),
        tracer_(plan_->plan(), plan_->rank()),
        local_pace_(PacesLocal(plan_->plan())),
        kept_step_(plan_->plan().start_step()),
        step_(plan_->plan().start_step()) {}

  absl::Status Run() override;
  void RequestStop() override { stop_requested_ = true; }
  void RequestCheckpoint() override { checkpoint_requested_ = true; }
  void RequestTrace(int steps) override { tracer_.Request(steps); }
  void Cancel(absl::Status why) override {
    Fail(why.ok() ? absl::CancelledError("cancelled") : std::move(why));
  }
  int64_t progress() const override { return progress_; }
  int64_t step() const override { return step_; }

 private:
  absl::Status Prepare();
  absl::Status OpenLinks();
  void MakeWriter();
  absl::Status TakeUpCodecStates();
  absl::Status RunSteps();
  absl::Status SaveCheckpoint(bool last);
  absl::StatusOr<CheckpointParts> KeepParts(bool local);
  absl::Status SaveLocal();
  void Copy(CheckpointParts parts, absl::Time now);
  void FinishOutlets();
  absl::Status Drain();
  void JoinAll();
  void Fail(const absl::Status& cause);
  absl::Status failure() const;
  StepRequests MakeRequests(int64_t step);
  bool CheckpointDue(int64_t step, const Vote& all);
  bool LocalDue(int64_t step) const;
  void Emit(SessionEvent::State state, const absl::Status& status = absl::OkStatus());
  std::vector<Port> Ports() const;

  const std::unique_ptr<const SessionPlan> plan_;
  const SessionOptions o_;
  StepTracer tracer_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StepRecorder> recorder_;
  std::string codec_states_;      // in words, what became of them at a resume
  bool checkpoint_owed_ = false;  // due, but a stage was busy
  bool last_unsaved_ = false;     // the last checkpoint waits for the one under way, or for Drain
  bool draining_ = false;         // all steps are done, nothing is left to send
  LocalPace local_pace_;
  LocalPace copy_pace_{/*paced=*/false};
  bool copied_ = false;  // the buddy was sent one since it refused one, or since the start
  int64_t kept_step_;    // of the last checkpoint of either kind
  std::atomic<bool> stop_requested_{false};
  std::atomic<bool> checkpoint_requested_{false};
  std::atomic<int64_t> progress_{0};
  std::atomic<int64_t> step_;

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CheckpointWriter> writer_;  // made and ended under mutex_
  std::unique_ptr<CheckpointWriter> copier_;  // to the buddy; null: there is none
  std::deque<Line> lines_;  // grows in OpenLinks alone, under mutex_; a line stays where it is
};

absl::Status SessionImpl::Run() {
  absl::Status status = Prepare();
  if (status.ok()) {
    Emit(SessionEvent::PREPARED);
    Emit(SessionEvent::RUNNING);
    status = RunSteps();
  }
  if (status.ok()) status = Drain();
  if (!status.ok()) Fail(status);
  JoinAll();
  if (recorder_ != nullptr) recorder_->Flush();
  std::unique_ptr<CheckpointWriter> writer;
  {
    MutexLock lock(&mutex_);
    writer = std::move(writer_);
  }
  if (o_.cancel_copies) o_.cancel_copies();  // the job goes on, or is stored
  writer.reset();
  copier_.reset();
  status = failure();
  Emit(status.ok() ? SessionEvent::FINISHED : SessionEvent::FAILED, status);
  return status;
}

absl::Status SessionImpl::Prepare() {
  RETURN_IF_ERROR(failure());
  RETURN_IF_ERROR(OpenLinks());
  ASSIGN_OR_RETURN(stage_, o_.make_stage(plan_->plan(), plan_->rank()));
  if (plan_->local()) RETURN_IF_ERROR(stage_->BeginRounds());
  ++progress_;
  ASSIGN_OR_RETURN(const CheckpointState loaded,
                   LoadCheckpoint(*plan_, o_.checkpoints, stage_.get()));
  if (plan_->reads_data()) RETURN_IF_ERROR(CheckSameText(*plan_, loaded, o_.corpus->fingerprint()));
  ++progress_;
  MakeWriter();
  ExecutorOptions options;
  options.stage = stage_.get();
  options.corpus = o_.corpus;
  options.states = o_.codec_states;
  options.make_lane = o_.make_lane;
  options.ports = Ports();
  options.requests = [this](int64_t step) { return MakeRequests(step); };
  options.checkpoint_due = [this](int64_t step, const Vote& all) {
    return CheckpointDue(step, all);
  };
  options.local_due = [this](int64_t step) { return LocalDue(step); };
  options.leave_eval = [this] { return stop_requested_.load(); };
  options.progress = &progress_;
  options.tracer = &tracer_;
  ASSIGN_OR_RETURN(executor_, Executor::Make(*plan_, std::move(options), loaded.skipped_steps));
  RETURN_IF_ERROR(TakeUpCodecStates());
  const FailSession fail = [this](absl::Status cause) { Fail(std::move(cause)); };
  recorder_ = std::make_unique<StepRecorder>(*plan_, o_.observer, &tracer_);
  for (Line& line : lines_) recorder_->Add(*line.in, line.out.get());
  for (Line& line : lines_) {
    line.in->Start(line.link.get(), fail, &tracer_);
    line.out->Start(
        line.link.get(), fail, [this] { recorder_->Sent(); }, &tracer_);
  }
  return failure();
}

void SessionImpl::MakeWriter() {
  CheckpointWriterOptions options;
  options.hold = o_.hold_last;
  options.progress = &progress_;
  auto writer = std::make_unique<CheckpointWriter>(*plan_, o_.checkpoints, o_.observer, options);
  if (o_.buddy != nullptr) copier_ = std::make_unique<CheckpointWriter>(*plan_, o_.buddy, nullptr);
  MutexLock lock(&mutex_);
  writer_ = std::move(writer);
}

// In the plan's order: every rank has the same, so nobody waits in a circle.
absl::Status SessionImpl::OpenLinks() {
  for (const LinkPlan* link : plan_->links()) {
    Line line;
    line.plan = link;
    if (link == plan_->above() && NeedsIndices(link->backward()))
      line.indices = std::make_unique<IndicesBoard>(IndicesBoard::LimitOf(*plan_));
    std::unique_ptr<DeviceLane> in, out;
    if (o_.make_lane != nullptr) {
      ASSIGN_OR_RETURN(in, o_.make_lane());
      if (link->kind() == LinkPlan::BOUNDARY) {
        ASSIGN_OR_RETURN(out, o_.make_lane());
      }
    }
    const bool lazy = link == plan_->below() && link->backward().kind() == CodecSpec::LAZY;
    if (lazy && out == nullptr) line.lazy = std::make_unique<LazyWatch>(2 * plan_->micros());
    ASSIGN_OR_RETURN(line.in, Inlet::Make(*plan_, *link, o_.spill_directory, o_.codec_states,
                                          line.indices.get(), std::move(in)));
    ASSIGN_OR_RETURN(line.out, Outlet::Make(*plan_, *link, o_.spill_directory, o_.codec_states,
                                            line.indices.get(), std::move(out)));
    line.in->set_lazy_watch(line.lazy.get());
    line.out->set_lazy_watch(line.lazy.get());
    absl::StatusOr<std::unique_ptr<Link>> opened =
        o_.links->Open(plan_->plan(), *link, plan_->rank(), plan_->open_timeout());
    if (!opened.ok())
      return Annotate(opened.status(), absl::StrCat("opening ", plan_->DescribeLink(*link)));
    line.link = *std::move(opened);
    ++progress_;
    MutexLock lock(&mutex_);
    lines_.push_back(std::move(line));
    if (failure_.ok()) continue;
    lines_.back().link->Cancel(failure_);  // Fail came while it opened
    return failure_;
  }
  return absl::OkStatus();
}

// Those of the checkpoint: of boundaries as far as both ends have the same, of groups what is here.
absl::Status SessionImpl::TakeUpCodecStates() {
  const int64_t step = plan_->plan().start_step();
  if (o_.codec_states != nullptr) o_.codec_states->Begin(plan_->plan().job_id(), step);
  std::vector<StateExchange> exchanges;
  for (Line& line : lines_) {
    if (line.plan->kind() != LinkPlan::BOUNDARY) continue;
    exchanges.emplace_back(*plan_, *line.plan, line.link.get(), line.out->encoder(),
                           line.in->decoder());
  }
  const auto tell = [&](const std::string& words) {
    ++progress_;
    if (words.empty()) return;
    LogInfo("codec states of checkpoint ", step, ", ", words);
    absl::StrAppend(&codec_states_, codec_states_.empty() ? "codec states: " : ", ", words);
  };
  for (StateExchange& exchange : exchanges) {
    RETURN_IF_ERROR(exchange.Offer());
    ++progress_;
  }
  for (StateExchange& exchange : exchanges) {
    ASSIGN_OR_RETURN(const std::string words, exchange.Settle());
    tell(words);
  }
  if (!plan_->goes_on()) return absl::OkStatus();
  for (const auto& group : executor_->groups()) {
    if (group == nullptr) continue;
    ASSIGN_OR_RETURN(const std::string words, group->LoadStates());
    tell(words);
  }
  return absl::OkStatus();
}

std::vector<Port> SessionImpl::Ports() const {
  std::vector<Port> ports(plan_->plan().links_size());
  for (const Line& line : lines_)
    ports[plan_->index_of(*line.plan)] = Port{line.in.get(), line.out.get()};
  return ports;
}

absl::Status SessionImpl::RunSteps() {
  for (int64_t step = step_; step < plan_->end_step(); ++step) {
    RETURN_IF_ERROR(failure());
    recorder_->Begin();
    tracer_.BeginStep(step);
    ASSIGN_OR_RETURN(const StepResult result, executor_->RunStep(step));
    step_ = step + 1;
    StepRecord record = recorder_->End(step, result);
    const bool last = result.decision.stop() || step + 1 == plan_->end_step();
    if (result.decision.checkpoint()) {
      RETURN_IF_ERROR(SaveCheckpoint(last));
    } else {
      checkpoint_owed_ = checkpoint_owed_ || plan_->CheckpointAfter(step);
      if (result.decision.local()) RETURN_IF_ERROR(SaveLocal());
    }
    if (result.decision.checkpoint() || result.decision.local()) kept_step_ = step + 1;
    if (!result.decision.stop() && plan_->EvalAfter(step)) {
      ASSIGN_OR_RETURN(const EvalResult eval, executor_->RunEval(step));
      record.set_has_validation_loss(eval.has_loss);
      record.set_validation_loss(eval.loss);
      if (eval.has_loss && IsMlp(plan_->job().model()))
        record.set_validation_accuracy(eval.accuracy);
    }
    recorder_->Finish(std::move(record));
    if (last) break;
  }
  return failure();
}

// What is queued is sent and counted. Every send ends by its own timeout.
void SessionImpl::FinishOutlets() {
  for (Line& line : lines_) line.out->Close();
  for (Line& line : lines_) line.out->Join();
}

StepRequests SessionImpl::MakeRequests(int64_t step) {
  StepRequests requests;
  requests.stop = stop_requested_;
  requests.checkpoint = checkpoint_requested_.exchange(false);
  const bool due = plan_->CheckpointAfter(step) || requests.checkpoint;
  requests.busy =
      !writer_->WaitIdle(PatienceWithStore(due, checkpoint_owed_, plan_->timeout(step)));
  // Copies of one step are there before the next one is kept, so that the newest whole set never
  // goes while a newer one is incomplete.
  const bool copies = copier_ != nullptr && !copier_->WaitIdle(absl::ZeroDuration());
  requests.hold = copies || local_pace_.Holds(SteadyNow());
  return requests;
}

bool SessionImpl::CheckpointDue(int64_t step, const Vote& all) {
  checkpoint_owed_ = checkpoint_owed_ || plan_->CheckpointAfter(step) || all.checkpoint();
  return checkpoint_owed_;
}

bool SessionImpl::LocalDue(int64_t step) const {
  const int64_t every = plan_->local_every();
  return every > 0 && (step + 1 - kept_step_ >= every || plan_->LocalAfter(step));
}

absl::StatusOr<CheckpointParts> SessionImpl::KeepParts(bool local) {
  CorpusPosition corpus;
  if (plan_->reads_data()) {
    corpus.position = plan_->MakeOrder(o_.corpus->train_samples()).At(step_);
    corpus.fingerprint = o_.corpus->fingerprint();
    corpus.contents = o_.data_contents;
  }
  ASSIGN_OR_RETURN(CheckpointParts parts,
                   KeepCheckpoint(*plan_, o_.checkpoints, stage_.get(),
                                  StateOf(*plan_, step_, executor_->skipped(), corpus), local));
  ++progress_;
  return parts;
}

// To a buddy that takes them: one that refused the last copy is left alone for a while.
void SessionImpl::Copy(CheckpointParts parts, absl::Time now) {
  if (copy_pace_.Holds(now)) return;
  if (std::exchange(copied_, false) && !copier_->last_status().ok()) {
    copy_pace_.Refused(now);
    return;
  }
  copier_->Save(std::move(parts));
  copied_ = true;
}

// A daemon that is killed comes back with it. One that the disk does not take is left out: those
// before it and the stored ones serve.
absl::Status SessionImpl::SaveLocal() {
  if (!plan_->puts_parts()) return absl::OkStatus();
  TraceScope span(&tracer_, step_ - 1, {TraceSpan::CHECKPOINT});
  const absl::Time began = SteadyNow();
  ASSIGN_OR_RETURN(CheckpointParts parts, KeepParts(/*local=*/true));
  const absl::Time now = SteadyNow();
  if (parts.on_disk.ok()) {
    int64_t bytes = 0;
    for (const CheckpointPart& part : parts.parts) bytes += part.bytes->bytes();
    local_pace_.Wrote(now, now - began, bytes);
    if (copier_ != nullptr) Copy(std::move(parts), now);
  } else {
    LogWarning("local checkpoint ", step_.load(),
               ": this host's disk does not take it: ", parts.on_disk.message(),
               ". None is written for ", absl::FormatDuration(LocalPace::kRefused),
               ". Free some disk under --state-dir, or raise --disk");
    local_pace_.Refused(now);
  }
  return absl::OkStatus();
}

// The last one alone may find another under way: it is saved in Drain, after a validation pass that
// the other stages want to go on with. What the step waits for is in the log and in traces.
absl::Status SessionImpl::SaveCheckpoint(bool last) {
  checkpoint_owed_ = false;
  if (!plan_->puts_parts()) return absl::OkStatus();  // another rank stores the same
  TraceScope span(&tracer_, step_ - 1, {TraceSpan::CHECKPOINT});
  last_unsaved_ = !writer_->WaitIdle(absl::ZeroDuration());
  if (last_unsaved_) return absl::OkStatus();
  const absl::Time began = SteadyNow();
  ASSIGN_OR_RETURN(CheckpointParts parts, KeepParts(/*local=*/false));
  parts.last = last;
  if (parts.on_disk.ok()) {
    LogInfo("checkpoint ", step_.load(), ": on this host's disk, the step waited ",
            absl::FormatDuration(absl::Trunc(SteadyNow() - began, absl::Milliseconds(1))));
    writer_->Save(std::move(parts));
  } else if (last && !draining_) {
    last_unsaved_ = true;  // it is put in Drain, where no other stage waits for it
  } else {
    LogWarning("checkpoint ", step_.load(),
               ": this host's disk does not take it, so it is sent while the ",
               "step waits. Free some disk under --state-dir, or raise --disk");
    writer_->SaveHere(std::move(parts), plan_->timeout(step_) / 2);
  }
  return absl::OkStatus();
}

// The orderly end: send what is queued, store the last checkpoint, see the peers end as well.
// Storing takes as long as it takes: the store ends a call of which no byte moves.
absl::Status SessionImpl::Drain() {
  FinishOutlets();
  draining_ = true;
  writer_->WaitIdle(absl::InfiniteDuration());
  // A file that was damaged on this host's disk is written anew: the stage has what was in it.
  if (last_unsaved_ || absl::IsDataLoss(writer_->last_status())) {
    RETURN_IF_ERROR(SaveCheckpoint(true));
    writer_->WaitIdle(absl::InfiniteDuration());
  }
  RETURN_IF_ERROR(writer_->last_status());
  for (Line& line : lines_) {
    if (!line.in->WaitDone(plan_->drain_timeout())) {
      LogWarning(plan_->DescribeLink(*line.plan), ": the peer has not ended within ",
                 absl::FormatDuration(plan_->drain_timeout()));
    }
  }
  return failure();
}

void SessionImpl::JoinAll() {
  const absl::Status done = absl::CancelledError("done");
  for (Line& line : lines_) line.out->Join();
  for (Line& line : lines_) {
    line.link->Cancel(done);  // wakes an inlet whose peer never ended
    line.in->Abort(done);
    line.in->Join();
  }
}

void SessionImpl::Fail(const absl::Status& cause) {
  std::vector<Line*> lines;
  absl::Status story;
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    story = failure_ = DescribeFailure(*plan_, step_, cause);
    for (Line& line : lines_) lines.push_back(&line);
    if (writer_ != nullptr) writer_->Abort();
  }
  for (Line* line : lines) {
    line->link->Cancel(story);
    line->in->Abort(story);
    line->out->Abort(story);
  }
}

absl::Status SessionImpl::failure() const {
  MutexLock lock(&mutex_);
  return failure_;
}

void SessionImpl::Emit(SessionEvent::State state, const absl::Status& status) {
  SessionEvent event;
  event.set_job_id(plan_->plan().job_id());
  event.set_generation(plan_->plan().generation());
  event.set_rank(plan_->rank());
  event.set_state(state);
  event.set_step(step_);
  event.set_message(state == SessionEvent::PREPARED ? codec_states_
                                                    : std::string(status.message()));
  event.set_code(static_cast<int>(status.code()));
  if (state == SessionEvent::FAILED) *event.mutable_cause() = CauseBeside(status);
  if (state == SessionEvent::PREPARED && o_.corpus != nullptr)
    event.set_corpus_fingerprint(o_.corpus->fingerprint());
  o_.observer->OnEvent(event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> MakeSession(SessionOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<const SessionPlan> plan,
                   SessionPlan::Make(options.plan, options.rank));
  if (options.observer == nullptr || options.checkpoints == nullptr || !options.make_stage) {
    return absl::InvalidArgumentError(
        "a session needs an observer, a checkpoint store and a stage factory");
  }
  if (!plan->links().empty() && options.links == nullptr)
    return absl::InvalidArgumentError("a session of several ranks needs links");
  if (plan->reads_data() && options.corpus == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan->Describe(options.rank), " reads the text, and there is none"));
  }
  return std::make_unique<SessionImpl>(std::move(plan), std::move(options));
}

}  // namespace isthmus::worker
