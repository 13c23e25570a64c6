// The passes of a micro-batch on a GPU as device graphs (device_graph.h): the launches of a pass,
// hundreds, then cost the host one call. Recorded after some micro-batches have run without, once
// for each micro-batch that is under way at a time, as each keeps its activations in memory of its
// own. For worker/engine alone. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_ENGINE_RECORDED_PASSES_H_
#define ISTHMUS_WORKER_ENGINE_RECORDED_PASSES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "proto/codec/codec_size.h"
#include "worker/engine/device_graph.h"

namespace isthmus::engine {

class RecordedPass;

// Where a pass goes on with a leaf of its own: its backward pass comes in pieces.
struct Cut {
  at::Tensor below, above;
};

// A micro-batch between Forward and Backward.
struct Pass {
  at::Tensor input;  // a leaf; the first stage has one with flat parameters alone
  at::Tensor
      output;  // activation, losses of the tokens, or, with flat parameters, what the head takes
  std::vector<Cut> cuts;  // from the first layers on
  // With recompute (layer_passes.h), no graph between `bottom` and `top`.
  std::vector<at::Tensor> layer_inputs;  // from the first layer on
  at::Tensor bottom;                     // what the first layer takes, with its graph
  at::Tensor top;            // a leaf: what the head or the boundary above takes of the layers
  at::Tensor tokens;         // with flat parameters: of the first stage
  at::Tensor head_gradient;  // and, of the last, the gradient of `output`
  at::Tensor from_cut;       // the gradient of `output`, once a piece is done
  at::Tensor tied_before;    // meanwhile: the embedding's gradient before this micro-batch
  double loss_scale = 1;
  int version = 0;                   // of the weights
  int pieces = 0;                    // of its backward pass that have begun
  TensorDims in, out;                // of what came and of what goes, in the boundaries' channels
  RecordedPass* recorded = nullptr;  // null: it ran by itself
};

// Backwards from `output`: by what the piece above left, by `gradient`, or, where that is
// undefined, by the head's gradient, or else as the losses' sum times loss_scale.
void DifferentiateOutput(const Pass& pass, const at::Tensor& gradient);
// False: it was the last one.
bool GoToNextPiece(Pass* pass);

// On the stage's device; undefined: this stage has none.
struct PassInputs {
  at::Tensor tokens, targets, activation;
};
struct PassOutputs {
  at::Tensor activation;
  at::Tensor loss;     // fp64: sum over the tokens
  at::Tensor correct;  // int64: samples whose class was said; of a classifier's validation alone
};

class RecordedPass {
 public:
  using ForwardWork = std::function<PassOutputs(const PassInputs& in, Pass* pass)>;
  using BackwardWork = std::function<at::Tensor(Pass* pass, const at::Tensor& gradient)>;

  // Queues the pass, which is what `work` queued at the first call, and copies its results. Throws
  // what `work` and LibTorch throw.
  PassOutputs Forward(c10::Device device, const PassInputs& in, const ForwardWork& work);
  // Ends the use that Take began.
  at::Tensor Backward(c10::Device device, const at::Tensor& gradient, const BackwardWork& work);
  void Release() { busy_ = false; }

 private:
  friend class RecordedPasses;
  int64_t samples_ = 0, positions_ = 0;
  double loss_scale_ = 0;
  int version_ = 0;
  bool busy_ = false;
  std::unique_ptr<DeviceGraph> forward_, backward_;  // null: not recorded yet
  PassInputs inputs_;
  PassOutputs outputs_;
  Pass pass_;  // until the backward pass is recorded
  at::Tensor gradient_, input_gradient_;
};

class RecordedPasses {
 public:
  static constexpr int kWarmUps = 3;  // libraries choose and allocate what they need meanwhile
  static constexpr size_t kMost = 16;

  // One for such a micro-batch, not in use. Null: it is to run by itself.
  RecordedPass* Take(c10::Device device, const Pass& pass);
  void Disable() { disabled_ = true; }

 private:
  std::vector<std::unique_ptr<RecordedPass>> passes_;
  int warm_ups_ = 0;
  bool disabled_ = false;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_RECORDED_PASSES_H_
