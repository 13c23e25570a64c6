// Executor: what the compute thread does in one step. It follows its rank's action lists: passes,
// reductions of groups, the vote (worker/sync/vote.h), STEP what the decision says; and where
// replicas agree after local steps, the list of that.
//
// Every wait is bounded by SessionPlan::timeout. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_EXECUTOR_H_
#define ISTHMUS_WORKER_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/corpus.h"
#include "worker/link/inlet.h"
#include "worker/link/outlet.h"
#include "worker/session_plan.h"
#include "worker/stage.h"
#include "worker/step_tracer.h"
#include "worker/sync/equal_weights.h"
#include "worker/sync/group_reduction.h"
#include "worker/sync/slice_exchange.h"
#include "worker/sync/vote.h"

namespace isthmus::worker {

struct Port {
  Inlet* in = nullptr;
  Outlet* out = nullptr;
};

struct ExecutorOptions {
  Stage* stage = nullptr;             // all pointers outlive the executor
  const Corpus* corpus = nullptr;     // ranks that read data
  CodecStateStore* states = nullptr;  // of the groups' codecs; null: not kept
  LaneFactory make_lane;              // of a stage on a GPU; null: it is on a CPU
  std::vector<Port> ports;            // by index in plan.links; empty where the link ends elsewhere
  // Asked once a step, when this rank's own gradients are complete: what it wishes of the vote
  // (but for `finite`).
  std::function<StepRequests(int64_t step)> requests;
  // The rank that decides: whether a checkpoint is due after this step, by the interval or owed.
  // Given the vote of all.
  std::function<bool(int64_t step, const Vote& all)> checkpoint_due;
  // ... and a local one, where nobody holds it back; null: never.
  std::function<bool(int64_t step)> local_due;
  // A rank that embeds, before each micro-batch of a validation pass: true leaves it, on the whole
  // chain.
  std::function<bool()> leave_eval;
  std::atomic<int64_t>* progress = nullptr;  // grows with every finished action
  StepTracer* tracer = nullptr;              // null: none
};

struct StepTimes {
  int64_t compute_ns = 0;
  int64_t send_wait_ns = 0;
  int64_t recv_wait_ns = 0;
  int64_t sync_ns = 0;
};

struct GroupTimes {
  int64_t reduce_ns = 0;  // of sync_ns, waits among it
  int64_t wait_ns = 0;    // of that, for frames
};

struct StepResult {
  Vote decision;
  double loss = 0;  // with the head: sum over the tokens of the step by their number
  double learning_rate = 0;
  StepTimes times;
  std::vector<GroupTimes> groups;  // by index in plan.groups
};

struct EvalResult {
  bool has_loss = false;  // with the head, if there are validation samples
  double loss = 0;        // mean over their tokens
  double accuracy = 0;    // of a classifier: share of the samples whose class it says
};

class Executor {
 public:
  // `plan` outlives the executor. `skipped`: steps before plan.start_step that did not commit (they
  // don't count for the optimiser).
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const SessionPlan& plan,
                                                        ExecutorOptions options, int64_t skipped);

  // One training step, to its commit or skip. The first error is final.
  absl::StatusOr<StepResult> RunStep(int64_t step);

  // The validation pass after `step`: changes nothing of the training state. One that is left
  // has no loss.
  absl::StatusOr<EvalResult> RunEval(int64_t step);

  int64_t skipped() const { return skipped_; }
  // Before the first step alone.
  const std::vector<std::unique_ptr<GroupReduction>>& groups() const { return groups_; }

 private:
  // What is known of a step before its decision. Where steps overlap, two are under way.
  struct StepState {
    int64_t step = -1;
    std::vector<uint32_t> ids;  // of its samples, on ranks that read data
    double loss_sum = 0;
    int64_t correct = 0;  // a classifier's validation: samples whose class was said
    bool finite = true;
  };
  struct Slot {  // what a micro-batch holds between its actions
    std::vector<uint32_t> ids;
    std::vector<uint32_t> token_ids;  // if a codec passes them on
    std::vector<uint32_t> indices;    // of the activation received, if its gradient goes by `kept`
    Tensor activation;                // received, then computed
    Tensor gradient;                  // received, then computed
    std::function<absl::StatusOr<double>()> late_loss;  // of its forward pass; asked for once
    bool leave = false;  // in place of an activation: the validation pass ends here
    int pieces = 0;      // of its backward pass, that are done
  };

  Executor(const SessionPlan& plan, ExecutorOptions options, int64_t skipped);
  void Begin(int64_t step);
  void BeginPasses(int64_t step);
  absl::Status Fill(int64_t step);
  absl::Status TakeHashes(int64_t step);
  absl::Status Agree(int64_t step);
  enum class Ahead { kOnly, kToo, kNot };  // which actions of a list
  absl::Status Follow(const google::protobuf::RepeatedPtrField<Action>& list, Ahead ahead);
  absl::Status Do(const Action& action);
  absl::Status DoEval(const Action& action, int64_t* samples);
  absl::StatusOr<bool> LeavesEval(const Action& action);
  absl::Status Send(const Action& action);
  absl::Status Receive(const Action& action);
  absl::Status ReceiveActivation(const Action& action);
  absl::Status Forward(const Action& action, bool train);
  absl::Status SendActivation(const Action& action);
  absl::Status ReceiveGradient(const Action& action);
  absl::Status Backward(const Action& action);
  void AddLoss(double loss, StepState* step);
  absl::Status SendGradient(const Action& action);
  absl::Status Reduction(const Action& action);
  absl::Status Exchange(const Action& action);
  GroupWires WiresOf(int group);
  void Wish();
  Vote OwnVote();
  Vote MakeDecision();
  absl::Status Outer();
  absl::Status Decided(const Vote& decision, int from_link);
  absl::Status TellCodecs();
  absl::Status Step();
  absl::Status SendVote(const Action& action, const Vote& vote);
  absl::Status PushTimed(const Port& port, Outbound item);
  absl::StatusOr<Inbound> Pop(const Port& port, FrameHeader::Kind kind, int64_t step, int micro);
  Outbound NewFrame(FrameHeader::Kind kind, int64_t step, int micro) const;
  void FillIds(const Action& action, bool train);
  std::vector<uint32_t> EvalIds(int micro) const;
  int64_t StepOf(const Action& action) const { return step_ + action.ahead(); }
  StepState& StateOf(const Action& action) { return states_[StepOf(action) % 2]; }
  // Micro-batches of two steps that overlap are told apart.
  int SlotOf(const Action& action) const {
    const int64_t half = plan_.overlaps() ? StepOf(action) % 2 : 0;
    return action.micro() + static_cast<int>(half) * micros_;
  }
  Slot& SlotFor(const Action& action) { return slots_[SlotOf(action)]; }

  const SessionPlan& plan_;
  ExecutorOptions o_;
  std::vector<std::unique_ptr<GroupReduction>> groups_;  // by index in plan.groups; null: not in it
  std::unique_ptr<SliceExchange> slices_;                // null: none are dealt
  std::unique_ptr<SampleOrder> order_;                   // ranks that read data
  const std::map<int, int> pieces_;                      // of each micro-batch's backward pass
  const int micros_;                                     // most of a step or a validation pass
  std::vector<Slot> slots_;
  int64_t step_ = 0;  // whose list is followed
  StepState states_[2];
  bool filling_ = false;   // steps overlap: passes of this one alone, nothing else is under way
  bool filled_ = false;    // ... passes of this one are under way
  bool draining_ = false;  // ... and none of the next one begin
  int64_t drained_ = -1;   // the step that a decision said so of
  EqualWeights weights_;
  bool equal_ = true;      // with local steps: replicas hold the same weights now
  bool agreeing_ = false;  // the list of an agreement is followed
  Agreement agreement_;    // with local steps, the next one, or that which is under way
  std::optional<StepRequests> wishes_;  // of this step
  std::optional<Vote> heard_;           // votes that came in this step
  int64_t skipped_ = 0;
  int64_t skipped_in_a_row_ = 0;
  StepResult result_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> targets_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_EXECUTOR_H_
