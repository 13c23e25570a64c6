// The passes of a micro-batch through a stage: embedding or what came from below, the layers, head
// with loss or what goes above, and back. With recompute a pass keeps of its layers what each takes
// and nothing else; the backward pass computes a layer again just before it differentiates it. For
// worker/engine alone. Functions throw what LibTorch throws; gpt2_stage.cc catches. Thread: the
// compute thread.
#ifndef ISTHMUS_WORKER_ENGINE_LAYER_PASSES_H_
#define ISTHMUS_WORKER_ENGINE_LAYER_PASSES_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "proto/job.pb.h"
#include "worker/engine/held_slice.h"
#include "worker/engine/network.h"
#include "worker/engine/recorded_passes.h"
#include "worker/engine/versions.h"

namespace isthmus::engine {

class LayerPasses {
 public:
  struct Layers {
    ModelSpec model;
    int first = 0, end = 0;
    std::vector<int> cuts;  // layers below which a backward pass is cut, from the top on
    bool recompute = false;
    int decoder = -1, encoder = -1;  // in the parameters; -1: no autoencoder at that boundary
  };

  explicit LayerPasses(Layers layers);

  // With the weights of `version`. `slice`: what the stage holds of its layers; null: all of them.
  // `train`: `pass` is then what Backward takes, of the same version.
  PassOutputs Forward(bool train, const PassInputs& in, const HeldSlice* slice, Version* version,
                      Pass* pass);

  // The next piece of the backward pass; all of it where there are no cuts. Gradients add up. The
  // result is that of the pass's input, where a stage is below; undefined where pieces are left.
  at::Tensor Backward(const at::Tensor& gradient, const HeldSlice* slice, Version* version,
                      Pass* pass);

  bool first() const { return layers_.first == 0; }
  bool last() const { return layers_.end == layers_.model.layers(); }

 private:
  at::Tensor Layer(int layer, const at::Tensor& x, bool train, const HeldSlice* slice,
                   const std::vector<Parameter>& parameters);
  // As DifferentiateOutput and GoToNextPiece, where layers are computed again.
  bool DifferentiateAgain(const at::Tensor& gradient, const HeldSlice* slice,
                          const std::vector<Parameter>& parameters, Pass* pass);
  size_t ParameterOf(int layer) const;  // the first one of the layer

  const Layers layers_;
  const std::unique_ptr<Network> network_;  // what the family computes
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_LAYER_PASSES_H_
