// A plan as one rank sees it: its links, groups, codecs, shapes, deadlines. Checked once, then
// read by every thread of a session. Thread: immutable.
#ifndef ISTHMUS_WORKER_SESSION_PLAN_H_
#define ISTHMUS_WORKER_SESSION_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/codec/codec_size.h"
#include "proto/plan.pb.h"
#include "proto/plan/agreements.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"
#include "proto/plan/overlap.h"
#include "worker/data/corpus.h"

namespace isthmus::worker {

class SessionPlan {
 public:
  // InvalidArgument names what is missing or does not fit: a bug of the planner or of a
  // hand-written plan, found before any link opens.
  static absl::StatusOr<std::unique_ptr<const SessionPlan>> Make(Plan plan, int rank);

  const Plan& plan() const { return plan_; }
  const JobSpec& job() const { return plan_.job(); }
  const RankPlan& mine() const { return plan_.ranks(rank_); }
  int rank() const { return rank_; }
  int stages() const { return stages_; }  // of each replica

  // This rank embeds tokens, and has the head and the loss. Both read the data.
  bool embeds() const { return Embeds(plan_, rank_); }
  bool has_head() const { return HasHead(plan_, rank_); }
  bool reads_data() const { return ReadsData(plan_, rank_); }
  // Ranks of one stage hold the same weights and gradients: the first one stores them, and counts
  // in the gradient norm.
  bool stands_for_stage() const { return stands_for_stage_; }
  bool puts_parts() const { return PutsParts(plan_, rank_); }  // of checkpoints

  // All links that end here, in the order in which every rank opens them, so that nobody waits in
  // a circle: boundaries from the top down, then those of groups.
  const std::vector<const LinkPlan*>& links() const { return links_; }
  const LinkPlan* below() const { return below_; }  // the boundaries; null: there is none
  const LinkPlan* above() const { return above_; }
  const std::vector<int>& groups() const { return groups_; }  // indices in plan.groups
  int index_of(const LinkPlan& link) const;                   // in plan.links
  // The link to another rank of a group.
  const LinkPlan& group_link(int peer) const;

  // False: the gradient of this micro-batch crosses the boundary as fp32, past its backward codec,
  // whose state does not move (LinkPlan.epilogue).
  bool CodesGradient(const LinkPlan& boundary, int micro) const;

  // A codec above the first stage needs the token ids: they travel with the activations.
  bool passes_token_ids() const { return passes_token_ids_; }

  // What this rank's replica takes of each batch.
  Share share() const { return share_; }
  int micros() const { return micros_; }
  int64_t samples(int micro) const;  // of a training micro-batch: the last one may be smaller
  int eval_micros() const { return eval_micros_; }  // of the replica that validates
  int queue_limit(const LinkPlan& link) const;
  TensorDims model_dims(int64_t samples) const {
    return {samples, job().model().context(), job().model().hidden()};
  }
  // What crosses a boundary: the model's width, or the channels of its autoencoder.
  TensorDims boundary_dims(const LinkPlan& boundary, int64_t samples) const {
    return WireDims(boundary.forward(), model_dims(samples));
  }
  int64_t tokens_per_step() const;
  // Training samples that ever come to this rank, as the coordinator counted; 0: not known.
  int64_t distinct_samples() const { return distinct_samples_; }
  // This replica's samples of each step from plan.start_step on, in a text of `train_samples`.
  SampleOrder MakeOrder(int64_t train_samples) const;

  // The first generation of a phase: weights are the phase's first ones, moments and codecs new.
  bool begins_phase() const {
    return plan_.phase() > 0 && plan_.start_step() == plan_.phase_start();
  }
  // It takes up all that the checkpoint of start_step holds.
  bool goes_on() const {
    return plan_.from_checkpoint() && plan_.start_step() > 0 && !begins_phase();
  }
  int64_t end_step() const { return job().recipe().steps(); }
  // Replicas make steps by themselves and then agree (proto/plan/agreements.h). Weights are
  // validated and stored where they agree on all of them, at the first such step that is due.
  bool local() const { return MakesLocalSteps(plan_); }
  bool streams() const { return Streams(plan_); }
  bool agreements_differ() const { return local() && AgreementsDiffer(plan_); }
  bool deals() const { return Deals(plan_); }  // slices to subnetworks (proto/plan/deal.h)
  bool EvalAfter(int64_t step) const { return isthmus::EvalAfter(plan_, step); }
  bool CheckpointAfter(int64_t step) const {  // by the interval alone
    return isthmus::CheckpointAfter(plan_, step);
  }
  // Steps overlap (proto/plan/overlap.h), and as the plan alone says nothing is under way after
  // this one; a decision may say so of another step.
  bool overlaps() const { return Overlaps(job()); }
  bool DrainsAfter(int64_t step) const {
    return CheckpointAfter(step) || EvalAfter(step) || LocalAfter(step) || step + 1 >= end_step();
  }
  // Local checkpoints (proto/plan/local_checkpoints.h): steps between two at the most, 0: none. One
  // falls due after `step`, whichever came before.
  int64_t local_every() const { return local_every_; }
  bool LocalAfter(int64_t step) const { return local_every_ > 0 && (step + 1) % local_every_ == 0; }

  // How long one wait may last without progress in `step` (or in the validation pass after it).
  absl::Duration timeout(int64_t step) const;
  absl::Duration open_timeout() const { return absl::Milliseconds(plan_.deadlines().open_ms()); }
  absl::Duration drain_timeout() const { return absl::Milliseconds(plan_.deadlines().drain_ms()); }

  int peer(const LinkPlan& link) const {
    return link.lower() == rank_ ? link.upper() : link.lower();
  }
  std::string Describe(int rank) const;                  // "stage 1 (node-b, 10.0.0.2:7071)"
  std::string DescribeLink(const LinkPlan& link) const;  // "link b0 with stage 1 (node-b, ...)"

 private:
  SessionPlan(Plan plan, int rank) : plan_(std::move(plan)), rank_(rank) {}
  absl::Status Check();
  absl::Status CheckShares();
  absl::Status CheckLinks();
  absl::Status CheckCodecs();
  absl::Status CheckLists();

  const Plan plan_;
  const int rank_;
  int stages_ = 0;
  std::vector<const LinkPlan*> links_;
  const LinkPlan* below_ = nullptr;
  const LinkPlan* above_ = nullptr;
  std::vector<int> epilogue_below_, epilogue_above_;  // micro-batches
  std::vector<int> groups_;
  bool passes_token_ids_ = false;
  bool stands_for_stage_ = true;
  Share share_;
  int64_t distinct_samples_ = 0;
  int micros_ = 0;
  int eval_micros_ = 0;
  int64_t local_every_ = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SESSION_PLAN_H_
