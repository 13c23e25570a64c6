// Stage: a contiguous run of layers on one worker. The engine implements it with LibTorch; tests
// have a fake.
//
// The compute thread owns it. Gradients add up over the micro-batches of a step until Apply or
// Discard. No call depends on the order of micro-batches beyond Forward before Backward of the same
// one. Thread: one (the compute thread), except where said.
#ifndef ISTHMUS_WORKER_STAGE_H_
#define ISTHMUS_WORKER_STAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/plan.pb.h"
#include "proto/plan/deal.h"
#include "worker/tensor.h"

namespace isthmus::worker {

struct MicroBatch {
  int32_t micro = 0;
  int64_t samples = 0;
  int64_t positions = 0;  // context length
  // First stage: samples x positions, of rows samples x inputs (proto/model/family.h); else empty.
  absl::Span<const uint32_t> tokens;
  absl::Span<const uint32_t> targets;  // last stage: samples x positions; else empty
  double loss_scale = 1;   // last stage: the gradient is that of loss_scale x (sum of token losses)
  bool train = true;       // false: nothing is kept for a backward pass
  bool late_loss = false;  // the caller can wait for the loss until after the backward pass
  bool ahead = false;      // overlapped steps: of the step after the one that ends next
};

struct ForwardResult {
  Tensor activation;     // not on the last stage
  double loss_sum = 0;   // last stage: sum of token losses in nats
  int64_t correct = -1;  // last stage, a classifier's validation: samples whose class it says
  // Where MicroBatch::late_loss allowed it, a device may give the sum so: the call waits for it.
  std::function<absl::StatusOr<double>()> late_loss;
};

struct GradientNorm {
  double sum_squares =
      0;  // of this stage's parameters; the tied embedding counts on the first stage alone
  bool finite = true;
};

struct OptimizerStep {
  int64_t step = 0;  // 1-based count of committed steps after this one (bias correction)
  double learning_rate = 0;
  double gradient_scale = 1;  // clipping: min(1, clip_norm / global norm)
  // quantized_adam after its warm-up of so many steps: gradients have become first moments
  // (TakeMomentum), and the second moments stay as they are. 0: AdamW.
  int64_t frozen_after = 0;
};

struct OuterStep {  // of what replicas agreed on
  double learning_rate = 0.7;
  double momentum = 0.9;  // Nesterov's
  double mix = 0;         // share of the replica's own weights in those that it goes on with
};

// A tensor as checkpoints have it: fp32; of a GPT-2 with Hugging Face's names.
struct StageTensor {
  enum Kind {
    kWeight,         // NAME
    kMoment,         // NAME.exp_avg, NAME.exp_avg_sq
    kOuterMomentum,  // OuterMomentumName(NAME), once rounds have begun
  };
  std::string name;
  std::vector<int64_t> shape;
  Kind kind = kWeight;
  bool copy = false;  // of what another stage of the replica stores: the tied embedding

  bool weight() const { return kind == kWeight; }
  int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
};

// Of a stage on a GPU: a set of its gradients (Stage::ReadGradient) as one tensor in its memory.
class DeviceGradients {
 public:
  virtual ~DeviceGradients() = default;
  // A copy: the elements from the set's `first` on, and zeros behind its end, up to `dims`.
  // InvalidArgument: the set ends before `first`.
  virtual absl::StatusOr<Tensor> CopyGradient(GroupPlan::Tensors set, int64_t first,
                                              const TensorDims& dims) = 0;
  // Takes the gradients from such a tensor.
  virtual absl::Status PutGradient(GroupPlan::Tensors set, int64_t first, Tensor gradients) = 0;
};

// Of a stage that trains a slice (proto/plan/deal.h): the weights of heads and hidden units, which
// change hands. `units` of the layers of the stage; values parameter by parameter in the stage's
// order, SliceElements of them. InvalidArgument: units that are not held, or another number.
// Called while no micro-batch is under way.
class StageSlice {
 public:
  virtual ~StageSlice() = default;
  virtual absl::Status Read(const Slice& units, absl::Span<float> out) = 0;
  // From now on it holds `next`, as many units as before. Those that it held stay as they are, or
  // all are taken from the whole model, if that is together; others are to be written. The moments
  // of all are dropped.
  virtual absl::Status Hold(const Slice& next) = 0;
  virtual absl::Status Write(const Slice& units, absl::Span<const float> in) = 0;

  // The whole model's weights, beside the slice's, until EndWhole: validation passes compute with
  // them, and ReadTensor gives them. Those that are held are there at once. Only then Tensors names
  // the moments of what is dealt, and gives zeros.
  virtual absl::Status BeginWhole() = 0;
  virtual absl::Status WriteWhole(const Slice& units, absl::Span<const float> in) = 0;
  virtual void EndWhole() = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;

  virtual DeviceGradients* OnDevice() { return nullptr; }  // null: the stage is on a CPU
  virtual StageSlice* OfSlice() { return nullptr; }        // null: it trains all of its layers

  // First stage: `input` is empty. Others: the decoded activation, samples x positions x hidden.
  virtual absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor input) = 0;

  // Last stage: `gradient` is empty. The result is the gradient of the input (empty on the first
  // stage).
  virtual absl::StatusOr<Tensor> Backward(int32_t micro, Tensor gradient) = 0;

  // The same in pieces, from the last layers on, as many as the plan has buckets of the gradients
  // of this rank (proto/plan/parts.h): after piece p the micro-batch has added all that it adds to
  // bucket p. Piece 0 takes `gradient`, the last one gives the result, others give nothing. The
  // bits are those of Backward.
  virtual absl::StatusOr<Tensor> BackwardPiece(int32_t micro, int piece, Tensor gradient) = 0;

  // The gradients of a set of the stage's parameters (OWN: not of what is dealt to slices), in a
  // fixed order: the same on every rank of a group. TIED is there only where another stage has that
  // embedding. Elements of [first, first + size); those of parameters without a gradient are 0.
  // InvalidArgument: a range beyond Elements.
  virtual int64_t Elements(GroupPlan::Tensors set) const = 0;
  virtual absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first,
                                    absl::Span<float> out) = 0;
  virtual absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                                     absl::Span<const float> in) = 0;

  // quantized_adam after its warm-up: these gradients of the set become this rank's part of the
  // first moment m,
  //   share x beta1 x m + (1 - beta1) x gradient
  // The parts of all ranks of a group, whose shares are 1 together, add up to the new moment. That
  // is what Read- and WriteGradient carry then, Norm is of, and Apply with frozen_after takes.
  virtual absl::Status TakeMomentum(GroupPlan::Tensors set, int64_t first, int64_t size,
                                    double share) = 0;

  // Where the OWN elements of each of its layers end, from the first layer on; the last one is
  // Elements(OWN).
  virtual std::vector<int64_t> LayerEnds() const = 0;

  // Local steps (DiLoCo, arXiv 2311.08105, algorithm 1). From BeginRounds on the stage keeps the
  // weights that replicas last agreed on (those of now, or that are written later) and the outer
  // momentum m (0, or written). The difference d is these weights less
  // those of now.
  //   m := momentum x m + d;  agreed := agreed - learning_rate x (d + momentum x m)
  //   weights := mix x weights + (1 - mix) x agreed
  // Of elements [first, first + size) of the set. FailedPrecondition: before BeginRounds.
  virtual absl::Status BeginRounds() = 0;
  virtual absl::Status ReadDifference(GroupPlan::Tensors set, int64_t first,
                                      absl::Span<float> out) = 0;
  virtual absl::Status ApplyDifference(GroupPlan::Tensors set, int64_t first,
                                       absl::Span<const float> d, const OuterStep& step) = 0;
  virtual absl::Status RestoreAgreed(GroupPlan::Tensors set, int64_t first, int64_t size) = 0;

  // Steps that overlap (proto/plan/overlap.h). From the first call on the stage keeps weights and
  // gradients twice. A forward pass takes the newest weights; gradients read and written, Norm,
  // Apply and Discard are those of the step that ends next. Called while no micro-batch is under
  // way: the passes that follow, `ahead` or not, begin with the newest weights.
  virtual absl::Status BeginOverlapped() = 0;

  virtual GradientNorm Norm() = 0;
  virtual absl::Status Apply(const OptimizerStep& step) = 0;  // updates weights, clears gradients
  virtual void Discard() = 0;                                 // clears gradients

  // Everything of it that checkpoints name, in a fixed order until the next call of BeginRounds,
  // BeginWhole or EndWhole. Tensors of which a slice holds a part are named whole: what is written
  // to them goes to what is held.
  // Values of tensor `i` of them, elements [first, first + size), row by row: so whoever stores
  // them, or fills them, holds no more than it likes. Between two steps alone; what is written is
  // what the next pass computes with. InvalidArgument: a range beyond the tensor.
  virtual std::vector<StageTensor> Tensors() const = 0;
  virtual absl::Status ReadTensor(int i, int64_t first, absl::Span<float> out) = 0;
  virtual absl::Status WriteTensor(int i, int64_t first, absl::Span<const float> in) = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_STAGE_H_
