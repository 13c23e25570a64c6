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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/plan.pb.h"
#include "worker/tensor.h"

namespace isthmus::worker {

struct MicroBatch {
  int32_t micro = 0;
  int64_t samples = 0;
  int64_t positions = 0;               // context length
  absl::Span<const uint32_t> tokens;   // first stage: samples x positions; else empty
  absl::Span<const uint32_t> targets;  // last stage: samples x positions; else empty
  double loss_scale = 1;   // last stage: the gradient is that of loss_scale x (sum of token losses)
  bool train = true;       // false: nothing is kept for a backward pass
  bool late_loss = false;  // the caller can wait for the loss until after the backward pass
  bool ahead = false;      // overlapped steps: of the step after the one that ends next
};

struct ForwardResult {
  Tensor activation;    // not on the last stage
  double loss_sum = 0;  // last stage: sum of token losses in nats
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
};

struct OuterStep {  // of what replicas agreed on
  double learning_rate = 0.7;
  double momentum = 0.9;  // Nesterov's
};

// Of a stage on a GPU: a set of its gradients (Stage::ReadGradient) as one tensor in its memory.
class DeviceGradients {
 public:
  virtual ~DeviceGradients() = default;
  // A copy: the elements one after the other, then zeros up to `dims`. InvalidArgument: the set has
  // more.
  virtual absl::StatusOr<Tensor> CopyGradient(GroupPlan::Tensors set, const TensorDims& dims) = 0;
  // Takes the gradients from such a tensor.
  virtual absl::Status PutGradient(GroupPlan::Tensors set, Tensor gradients) = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;

  virtual DeviceGradients* OnDevice() { return nullptr; }  // null: the stage is on a CPU

  // First stage: `input` is empty. Others: the decoded activation, samples x positions x hidden.
  virtual absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor input) = 0;

  // Last stage: `gradient` is empty. The result is the gradient of the input (empty on the first
  // stage).
  virtual absl::StatusOr<Tensor> Backward(int32_t micro, Tensor gradient) = 0;

  // The gradients of a set of the stage's parameters, one after the other in a fixed order: the
  // same on every rank of a group. TIED is there only where another stage has a copy of the tied
  // embedding. Elements of [first, first + size); those of parameters without a gradient are 0.
  // InvalidArgument: a range beyond Elements.
  virtual int64_t Elements(GroupPlan::Tensors set) const = 0;
  virtual absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first,
                                    absl::Span<float> out) = 0;
  virtual absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                                     absl::Span<const float> in) = 0;

  // Local steps (DiLoCo, arXiv 2311.08105, algorithm 1). From BeginRounds on the stage keeps the
  // weights that replicas last agreed on (those of now, or that are imported later) and the outer
  // momentum m (0, or imported; ExportOptimizer has it). The difference d is these weights less
  // those of now.
  //   m := momentum x m + d;  weights := agreed := agreed - learning_rate x (d + momentum x m)
  // d is that of the whole set. FailedPrecondition: before BeginRounds.
  virtual absl::Status BeginRounds() = 0;
  virtual absl::Status ReadDifference(GroupPlan::Tensors set, int64_t first,
                                      absl::Span<float> out) = 0;
  virtual absl::Status ApplyDifference(GroupPlan::Tensors set, absl::Span<const float> d,
                                       const OuterStep& step) = 0;
  virtual absl::Status RestoreAgreed(GroupPlan::Tensors set) = 0;

  // Steps that overlap (proto/plan/overlap.h). From the first call on the stage keeps weights and
  // gradients twice. A forward pass takes the newest weights; gradients read and written, Norm,
  // Apply and Discard are those of the step that ends next. Called while no micro-batch is under
  // way: the passes that follow, `ahead` or not, begin with the newest weights.
  virtual absl::Status BeginOverlapped() = 0;

  virtual GradientNorm Norm() = 0;
  virtual absl::Status Apply(const OptimizerStep& step) = 0;  // updates weights, clears gradients
  virtual void Discard() = 0;                                 // clears gradients

  // Safetensors bytes with Hugging Face GPT-2 names. A copy: the caller may write it while training
  // goes on. The tied embedding is exported by the first stage alone.
  virtual absl::StatusOr<std::string> ExportWeights() = 0;
  virtual absl::StatusOr<std::string> ExportOptimizer() = 0;
  // The tied embedding and its moments, as this stage holds them, where the first stage exports
  // them and this one is another that needs them. Empty bytes where there is nothing of the kind.
  virtual absl::StatusOr<std::string> ExportTied() = 0;
  // Names this stage needs from a checkpoint (weights; optimiser names are these with ".exp_avg"
  // and ".exp_avg_sq").
  virtual std::vector<std::string> TensorNames() const = 0;
  // Takes F32, F16 or BF16. NotFound names a missing tensor, InvalidArgument a wrong shape. Extra
  // tensors are ignored.
  virtual absl::Status ImportWeights(absl::string_view safetensors) = 0;
  virtual absl::Status ImportOptimizer(absl::string_view safetensors) = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_STAGE_H_
