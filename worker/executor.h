// Executor: what the compute thread does in one step. It follows the stage's action list; SYNC is
// the tied gradient's exchange and the vote (worker/vote.h), STEP what the decision says.
//
// Every wait is bounded by SessionPlan::timeout. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_EXECUTOR_H_
#define ISTHMUS_WORKER_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/corpus.h"
#include "worker/link/inlet.h"
#include "worker/link/outlet.h"
#include "worker/session_plan.h"
#include "worker/stage.h"
#include "worker/tied.h"
#include "worker/vote.h"

namespace isthmus::worker {

struct Port {
  Inlet* in = nullptr;
  Outlet* out = nullptr;
};

struct ExecutorOptions {
  Stage* stage = nullptr;             // all pointers outlive the executor
  const Corpus* corpus = nullptr;     // first and last stage
  CodecStateStore* states = nullptr;  // of the tied gradient's codec; null: not kept
  Port lower, upper, tied;
  // Asked once a step, when this stage's own gradients are complete: what it wishes of the vote
  // (but for `finite`).
  std::function<StepRequests(int64_t step)> requests;
  // Stage 0: whether a checkpoint is due after this step, by the interval or owed. Given the vote
  // of all.
  std::function<bool(int64_t step, const Vote& all)> checkpoint_due;
  // Stage 0, before each micro-batch of a validation pass: true leaves it, on all stages.
  std::function<bool()> leave_eval;
  std::atomic<int64_t>* progress = nullptr;  // grows with every finished action
};

struct StepTimes {
  int64_t compute_ns = 0;
  int64_t send_wait_ns = 0;
  int64_t recv_wait_ns = 0;
  int64_t sync_ns = 0;
};

struct StepResult {
  Vote decision;
  double loss = 0;  // last stage: mean over the tokens of the step
  double learning_rate = 0;
  StepTimes times;
};

struct EvalResult {
  bool has_loss = false;  // last stage, if there are validation samples
  double loss = 0;        // mean over their tokens
};

class Executor {
 public:
  // `plan` outlives the executor. `skipped`: steps before plan.start_step that did not commit (they
  // don't count for the optimiser).
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const SessionPlan& plan,
                                                        ExecutorOptions options, int64_t skipped);

  // One training step, to its commit or skip. The first error is final.
  absl::StatusOr<StepResult> RunStep(int64_t step);

  // The validation pass after `step`: changes nothing of the training state. One that stage 0
  // leaves has no loss.
  absl::StatusOr<EvalResult> RunEval(int64_t step);

  int64_t skipped() const { return skipped_; }
  // Of the tied gradient; null where there is none. Before the first step alone.
  ResumableCodec<compress::Encoder>* tied_encoder() {
    return tied_ != nullptr ? tied_->encoder() : nullptr;
  }

 private:
  struct Slot {  // what a micro-batch holds between its actions
    std::vector<uint32_t> ids;
    std::vector<uint32_t> token_ids;  // if a codec passes them on
    std::vector<uint32_t> places;     // of the activation received, if its gradient goes by `kept`
    Tensor activation;                // received, then computed
    Tensor gradient;                  // received, then computed
    bool leave = false;               // in place of an activation: the validation pass ends here
  };

  Executor(const SessionPlan& plan, ExecutorOptions options, int64_t skipped);
  absl::Status Begin(int64_t step);
  absl::Status Do(const Action& action);
  absl::Status DoEval(const Action& action, double* loss_sum, int64_t* samples);
  absl::StatusOr<bool> LeavesEval(const Action& action);
  absl::Status ReceiveActivation(int micro, bool train);
  absl::Status Forward(int micro, bool train, double* loss_sum);
  absl::Status SendActivation(int micro, bool train);
  absl::Status ReceiveGradient(int micro);
  absl::Status Backward(int micro);
  absl::Status SendGradient(int micro);
  absl::Status Sync();
  absl::Status Decision(const Vote& all);
  absl::Status TellCodecs(bool checkpoint);
  absl::Status Step();
  absl::Status SendHash(const Port& port);
  absl::Status SendVote(const Port& port, FrameHeader::Kind kind, const Vote& vote);
  absl::Status PushTimed(const Port& port, Outbound item);
  absl::StatusOr<Inbound> Pop(const Port& port, FrameHeader::Kind kind, int micro);
  Outbound NewFrame(FrameHeader::Kind kind, int micro) const;
  void FillIds(int micro, bool train);
  void EndInlets();
  std::vector<uint32_t> EvalIds(int micro) const;

  const SessionPlan& plan_;
  ExecutorOptions o_;
  std::unique_ptr<TiedExchange> tied_;  // first and last stage, if they differ
  std::unique_ptr<SampleOrder> order_;  // first and last stage
  std::vector<uint32_t> step_ids_;
  std::vector<Slot> slots_;
  int64_t step_ = 0;
  double loss_sum_ = 0;
  bool finite_ = true;
  int64_t skipped_ = 0;
  int64_t skipped_in_a_row_ = 0;
  StepResult result_;
  std::vector<uint16_t> tokens_;
  std::vector<uint16_t> targets_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_EXECUTOR_H_
