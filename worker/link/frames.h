// What must be true of a frame before anything is done with it, and the order in which frames must
// come. Thread: pure functions; a FrameSequence has one owner.
#ifndef ISTHMUS_WORKER_LINK_FRAMES_H_
#define ISTHMUS_WORKER_LINK_FRAMES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/peer.pb.h"
#include "worker/link/link.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

// XXH3-64 of the payload, seeded with the XXH3-64 of every other field of the header: a flipped bit
// in a vote, a sample id or a shape is found as surely as one in the payload.
uint64_t FrameChecksum(const FrameHeader& header, absl::string_view payload);

// Fills job, generation, payload_bytes and checksum; everything else is there already.
void SealFrame(const Plan& plan, Frame* frame);

struct ExpectedFrame {
  FrameHeader::Kind kind = FrameHeader::ACTIVATION;
  int64_t step = 0;
  int32_t micro = 0;
  int32_t group = 0;
  bool last_of_step = false;  // on this link
  bool merged = true;         // SLICE: where the agreement brings the whole model together
};

std::string FrameName(FrameHeader::Kind kind, int64_t step,
                      int32_t micro);  // "activation of micro-batch 3, step 17"

// The codec of a frame of `kind` on `link`, of `step` and of `micro` or `group`; NONE for frames
// without a tensor, and for gradients that the link's codec leaves out
// (SessionPlan::CodesGradient).
const CodecSpec& FrameCodec(const SessionPlan& plan, const LinkPlan& link, FrameHeader::Kind kind,
                            int64_t step, int micro, int group);
bool HasTensor(FrameHeader::Kind kind);
// CONTRIBUTION, SUM and SLICE.
bool OfGroup(FrameHeader::Kind kind);

// Shape of the tensor of `expected`, which comes in over `link`; in validation passes the largest
// allowed (the header says how many samples there are).
TensorDims FrameDims(const SessionPlan& plan, const LinkPlan& link, const ExpectedFrame& expected);

// Bound on the payload of a frame: memory is bounded by the plan, not by the peer.
int64_t MaxPayloadBytes(const SessionPlan& plan, const LinkPlan& link,
                        const ExpectedFrame& expected);

// FailedPrecondition: another job or generation. DataLoss: not the frame that must come next (lost,
// repeated, out of order), a wrong checksum. InvalidArgument: a codec or shape that the plan does
// not have. The message says which, expected and found.
absl::Status CheckFrame(const SessionPlan& plan, const LinkPlan& link,
                        const ExpectedFrame& expected, const Frame& frame);

// The frames that must come in over one link, in order: what this rank's action lists receive on
// it. Both ends follow the plan, so the next frame is always known. An activation of a validation
// pass without samples, with a vote that says stop, ends the pass.
class FrameSequence {
 public:
  FrameSequence(const SessionPlan& plan, const LinkPlan& link);

  // Where steps overlap, and passes of the step ahead come in over a link without decisions: asked
  // once a step, before the first of them, whether the step is drained. Where fragments have
  // agreements of their own: after each, whether the next one is of all. nullopt: the session ends.
  bool asks() const {
    return !decides_ &&
           (!items_[kFill].empty() || (plan_.agreements_differ() && !items_[kAgree].empty()));
  }
  void Ask(std::function<std::optional<bool>(int64_t step)> drains) { drains_ = std::move(drains); }

  // nullopt: nothing more will come.
  std::optional<ExpectedFrame> Next();
  // The decision that was just read: where it says stop, nothing comes after it; where it says
  // drain, nothing of the step after the next one comes before that is over.
  void Decided(const Vote& decision) {
    stopped_ = decision.stop();
    all_agree_ = decision.drain();
    if (decision.drain()) drained_ = step_ + 1;
  }
  // The rest of the validation pass does not come.
  void LeaveEval();
  // Decisions come over this link.
  bool decides() const { return decides_; }
  // One of each kind that comes: for bounds.
  std::vector<ExpectedFrame> Each() const;

 private:
  struct Item {
    FrameHeader::Kind kind;
    int32_t micro;
    int32_t group;
    int32_t ahead;
  };

  const SessionPlan& plan_;
  // What comes in one after the other in a step: where steps overlap and nothing is under way, what
  // fills (proto/plan/overlap.h); passes and votes, what replicas agree on, a validation pass.
  // Those that a step does not have, or in which nothing comes, are left out.
  enum Part { kFill, kTrain, kAgree, kEval, kParts };

  void Add(const google::protobuf::RepeatedPtrField<Action>& list, Part part, const LinkPlan& link);
  bool Has(Part part) const;
  // Of an agreement: it comes after the step that is read.
  bool Due(const Item& item) const;
  // The step that its sender was at.
  int64_t StepOf(const Item& item) const;
  // False: the session ends.
  bool EndAgreement();
  // The part that ends the step for good, but for validation: its decision stands.
  Part Ending() const { return agreement_.apply == step_ ? kAgree : kTrain; }
  bool Drains() const { return plan_.DrainsAfter(step_) || drained_ == step_; }
  bool EndsStep() const;

  std::vector<Item> items_[kParts];
  int64_t step_;
  int part_ = kFill;
  bool filled_ = false;   // passes of this step are under way already
  int64_t drained_ = -1;  // the step that a decision on this link, or the answer, said so of
  int64_t asked_ = -1;
  std::function<std::optional<bool>(int64_t)> drains_;
  Agreement agreement_;     // with local steps, the next one, or that which is under way
  bool all_agree_ = false;  // a decision on this link said so of the next one
  bool stopped_ = false;
  bool decides_ = false;
  size_t at_ = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_FRAMES_H_
