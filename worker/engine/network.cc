#include "worker/engine/network.h"

#include <c10/core/GradMode.h>

#include <utility>
#include <vector>

#include "proto/job/job_defaults.h"
#include "proto/model/family.h"
#include "worker/engine/blocks.h"
#include "worker/engine/head.h"
#include "worker/engine/mlp.h"
#include "worker/engine/parameters.h"

namespace isthmus::engine {
namespace {

class Gpt2Network : public Network {
 public:
  Gpt2Network(const ModelSpec& model, bool first_stage)
      : heads_(model.heads()),
        norm_epsilon_(NormEpsilon(model)),
        ties_here_(first_stage && IsTied(model)) {}

  size_t FirstTensors() const override { return 2; }
  size_t LayerTensors() const override { return kBlockTensors; }

  // Flat parameters: no graph, which would make a gradient as large as the table of each
  // micro-batch.
  at::Tensor Begin(const Version& version, bool train, const at::Tensor& ids,
                   Pass* pass) const override {
    const at::Tensor &wte = version.parameters[0].value, &wpe = version.parameters[1].value;
    if (version.flat == nullptr) return Embed(ids, wte, wpe);
    const c10::AutoGradMode no_gradients(false);
    pass->tokens = ids;
    pass->input = Embed(ids, wte, wpe);
    return pass->input.requires_grad_(train);
  }

  at::Tensor Layer(const std::vector<Parameter>& parameters, size_t at, int layer, bool train,
                   const HeldSlice* slice, const at::Tensor& x) override {
    return Block(x, train ? WeightsAt(parameters, at) : WholeWeightsAt(parameters, at),
                 slice != nullptr ? slice->ShapeOf(layer, !train) : BlockShape{heads_},
                 Mask(x.size(1), parameters.front()), norm_epsilon_);
  }

  at::Tensor End(Version* version, size_t at, bool train, const HeldSlice*,
                 const at::Tensor& targets, const at::Tensor& x, Pass* pass,
                 PassOutputs* out) const override {
    std::vector<Parameter>& parameters = version->parameters;
    Parameter& embedding = ties_here_ ? parameters.front() : parameters[at + 2];
    const at::Tensor in =
        HeadNorm(x, parameters[at].operand, parameters[at + 1].operand, norm_epsilon_);
    if (version->flat == nullptr) {
      const at::Tensor losses = TokenLosses(Logits(in, embedding.operand), targets);
      out->loss = losses.detach().sum(at::kDouble);
      return losses;
    }
    const at::Tensor typed = in.to(embedding.operand.scalar_type());
    HeadOptions options;
    options.scale = pass->loss_scale;
    options.gradients = train;
    HeadResult result = HeadLoss(typed.detach(), embedding.operand.detach(), targets.view({-1}),
                                 options, embedding.value.grad());
    pass->head_gradient = std::move(result.gradient);
    out->loss = std::move(result.loss);
    return typed;
  }

  void EndBackward(Version* version, const Pass& pass) const override {
    if (version->flat == nullptr) return;
    AddEmbedded(pass.tokens, pass.input.grad(), version->parameters[0].value.mutable_grad(),
                version->parameters[1].value.mutable_grad());
  }

 private:
  const at::Tensor& Mask(int64_t positions, const Parameter& any) {
    if (mask_positions_ != positions) {
      mask_ = CausalMask(positions, any.operand.options().requires_grad(false));
      mask_positions_ = positions;
    }
    return mask_;
  }

  const int heads_;
  const double norm_epsilon_;
  const bool ties_here_;  // the head shares the embedding of this very stage
  at::Tensor mask_;
  int64_t mask_positions_ = -1;
};

class MlpNetwork : public Network {
 public:
  explicit MlpNetwork(const ModelSpec& model) : layers_(model.layers()) {}

  size_t FirstTensors() const override { return 0; }
  size_t LayerTensors() const override { return kDenseTensors; }

  at::Tensor Begin(const Version&, bool, const at::Tensor& ids, Pass*) const override {
    return RowValues(ids);
  }

  at::Tensor Layer(const std::vector<Parameter>& parameters, size_t at, int layer, bool train,
                   const HeldSlice* slice, const at::Tensor& x) override {
    return HiddenLayer(x, WeightOf(parameters[at], train), WeightOf(parameters[at + 1], train),
                       ScaleInto(layer, train, slice));
  }

  at::Tensor End(Version* version, size_t at, bool train, const HeldSlice* slice,
                 const at::Tensor& targets, const at::Tensor& x, Pass*,
                 PassOutputs* out) const override {
    const at::Tensor logits =
        Dense(x, WeightOf(version->parameters[at], train),
              WeightOf(version->parameters[at + 1], train), ScaleInto(layers_, train, slice));
    const at::Tensor losses = TokenLosses(logits.view({-1, logits.size(-1)}), targets);
    out->loss = losses.detach().sum(at::kDouble);
    if (!train) out->correct = CountCorrect(logits, targets);
    return losses;
  }

  void EndBackward(Version*, const Pass&) const override {}

 private:
  static at::Tensor WeightOf(const Parameter& p, bool train) {
    return train ? p.operand : WholeOperand(p);
  }

  // Of the products of a layer with the units before it.
  static double ScaleInto(int layer, bool train, const HeldSlice* slice) {
    return slice == nullptr || layer == 0 ? 1 : slice->UnitScale(layer - 1, !train);
  }

  const int layers_;
};

}  // namespace

std::unique_ptr<Network> MakeNetwork(const ModelSpec& model, bool first_stage) {
  if (IsMlp(model)) return std::make_unique<MlpNetwork>(model);
  return std::make_unique<Gpt2Network>(model, first_stage);
}

}  // namespace isthmus::engine
