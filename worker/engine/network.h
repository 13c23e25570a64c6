// What a family of models computes on a stage, between a stage's bookkeeping (layer_passes.h:
// passes in pieces or computed again; gpt2_stage.cc: parameters, versions) and functions of tensors
// (blocks.h, mlp.h). Parameters are in the order of StageParameters. For worker/engine alone.
// Thread: the compute thread.
#ifndef ISTHMUS_WORKER_ENGINE_NETWORK_H_
#define ISTHMUS_WORKER_ENGINE_NETWORK_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "proto/job.pb.h"
#include "worker/engine/held_slice.h"
#include "worker/engine/recorded_passes.h"
#include "worker/engine/versions.h"

namespace isthmus::engine {

class Network {
 public:
  virtual ~Network() = default;

  // Parameters before the layers' on the first stage, and of each layer.
  virtual size_t FirstTensors() const = 0;
  virtual size_t LayerTensors() const = 0;

  // On the first stage: what its first layer takes, of the ids of a micro-batch.
  virtual at::Tensor Begin(const Version& version, bool train, const at::Tensor& ids,
                           Pass* pass) const = 0;
  // A layer, whose parameters begin at `at`. `slice`: what the stage holds of its layers; null: all
  // of them.
  virtual at::Tensor Layer(const std::vector<Parameter>& parameters, size_t at, int layer,
                           bool train, const HeldSlice* slice, const at::Tensor& x) = 0;
  // On the last stage, with the parameters from `at` on: what the backward pass begins with
  // (DifferentiateOutput). The loss goes to `out`.
  virtual at::Tensor End(Version* version, size_t at, bool train, const HeldSlice* slice,
                         const at::Tensor& targets, const at::Tensor& x, Pass* pass,
                         PassOutputs* out) const = 0;
  // On the first stage, after the backward pass: adds the gradients that no graph does.
  virtual void EndBackward(Version* version, const Pass& pass) const = 0;
};

std::unique_ptr<Network> MakeNetwork(const ModelSpec& model, bool first_stage);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_NETWORK_H_
