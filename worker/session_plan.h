// A plan as one stage sees it: its neighbours, links, codecs, shapes, deadlines. Checked once, then
// read by every thread of a session. Thread: immutable.
#ifndef ISTHMUS_WORKER_SESSION_PLAN_H_
#define ISTHMUS_WORKER_SESSION_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/codec/codec_size.h"
#include "proto/plan.pb.h"
#include "worker/data/corpus.h"

namespace isthmus::worker {

class SessionPlan {
 public:
  // InvalidArgument names what is missing or does not fit: a bug of the planner or of a
  // hand-written plan, found before any link opens.
  static absl::StatusOr<std::unique_ptr<const SessionPlan>> Make(Plan plan, int stage);

  const Plan& plan() const { return plan_; }
  const JobSpec& job() const { return plan_.job(); }
  const StagePlan& mine() const { return plan_.stages(stage_); }
  int stage() const { return stage_; }
  int stages() const { return plan_.stages_size(); }
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ + 1 == stages(); }

  const LinkPlan* lower() const { return lower_; }  // to stage - 1; null on the first
  const LinkPlan* upper() const { return upper_; }  // to stage + 1; null on the last
  const LinkPlan* tied() const {
    return tied_;
  }  // first <-> last; null on others, and with one stage
  const CodecSpec& tied_codec() const { return tied_codec_; }

  // A codec above the first stage needs the token ids: they travel with the activations.
  bool passes_token_ids() const { return passes_token_ids_; }

  int micros() const { return micros_; }
  int64_t samples(int micro) const;  // of a training micro-batch: the last one may be smaller
  int eval_micros() const { return eval_micros_; }
  int queue_limit(const LinkPlan& link) const;
  TensorDims model_dims(int64_t samples) const {
    return {samples, job().model().context(), job().model().hidden()};
  }
  // What crosses a boundary: the model's width, or the channels of its autoencoder.
  TensorDims boundary_dims(const LinkPlan& boundary, int64_t samples) const {
    return WireDims(boundary.forward(), model_dims(samples));
  }
  TensorDims tied_dims() const { return {1, job().model().vocabulary(), job().model().hidden()}; }
  int64_t tokens_per_step() const;
  // The samples of each step from plan.start_step on, in a text of `train_samples`.
  SampleOrder MakeOrder(int64_t train_samples) const;

  int64_t end_step() const { return job().recipe().steps(); }
  bool EvalAfter(int64_t step) const;
  bool CheckpointAfter(int64_t step) const;  // by the interval alone

  // How long one wait may last without progress in `step` (or in the validation pass after it).
  absl::Duration timeout(int64_t step) const;
  absl::Duration open_timeout() const { return absl::Milliseconds(plan_.deadlines().open_ms()); }
  absl::Duration drain_timeout() const { return absl::Milliseconds(plan_.deadlines().drain_ms()); }

  int peer_stage(const LinkPlan& link) const {
    return link.lower() == stage_ ? link.upper() : link.lower();
  }
  std::string Describe(int stage) const;                 // "stage 1 (node-b, 10.0.0.2:7071)"
  std::string DescribeLink(const LinkPlan& link) const;  // "link b0 with stage 1 (node-b, ...)"

 private:
  SessionPlan(Plan plan, int stage) : plan_(std::move(plan)), stage_(stage) {}
  absl::Status Check();
  absl::Status CheckCodecs();
  absl::Status CheckActions();

  const Plan plan_;
  const int stage_;
  const LinkPlan* lower_ = nullptr;
  const LinkPlan* upper_ = nullptr;
  const LinkPlan* tied_ = nullptr;
  CodecSpec tied_codec_;
  bool passes_token_ids_ = false;
  int micros_ = 0;
  int eval_micros_ = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SESSION_PLAN_H_
