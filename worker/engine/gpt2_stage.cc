#include "worker/engine/gpt2_stage.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "worker/engine/adamw.h"
#include "worker/engine/batch_ids.h"
#include "worker/engine/blocks.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/flat_parameters.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/head.h"
#include "worker/engine/parameters.h"
#include "worker/engine/rounds.h"
#include "worker/engine/runtime.h"
#include "worker/engine/stage_tensors.h"
#include "worker/engine/tensor_file.h"
#include "worker/engine/versions.h"

namespace isthmus::engine {
namespace {

// Updates that overlapped steps look ahead, each as the last one: one for the step that their
// gradients are late, one more as Nesterov's momentum takes gradients where the next step will be
// (measured: coordinator/OVERLAP.md).
constexpr double kLookAhead = 2;

using worker::ForwardResult;
using worker::GradientNorm;
using worker::MicroBatch;
using worker::OptimizerStep;
using worker::OuterStep;
using worker::Tensor;

// A micro-batch between Forward and Backward.
struct Kept {
  at::Tensor input;  // a leaf; the first stage has one with flat parameters alone
  at::Tensor
      output;  // activation, losses of the tokens, or, with flat parameters, what the head takes
  at::Tensor tokens;         // with flat parameters: of the first stage
  at::Tensor head_gradient;  // and, of the last, the gradient of `output`
  double loss_scale = 1;
  int version = 0;     // of the weights
  TensorDims in, out;  // of what came and of what goes, in the boundaries' channels
};

std::string Text(const TensorDims& d) {
  return absl::StrCat(d.samples, " x ", d.positions, " x ", d.hidden);
}

class Gpt2Stage : public worker::Stage, private worker::DeviceGradients {
 public:
  Gpt2Stage(const Plan& plan, int rank, c10::Device device, Precision precision, bool as_on_gpu)
      : model_(plan.job().model()),
        norm_epsilon_(NormEpsilon(model_)),
        recipe_(plan.job().recipe()),
        first_layer_(plan.ranks(rank).first_layer()),
        end_layer_(plan.ranks(rank).end_layer()),
        first_(first_layer_ == 0),
        last_(end_layer_ == model_.layers()),
        look_ahead_(plan.job().strategy().look_ahead() ? kLookAhead : 0),
        device_(device),
        precision_(precision) {
    optimizer_.beta1 = recipe_.beta1();
    optimizer_.beta2 = recipe_.beta2();
    optimizer_.epsilon = recipe_.epsilon();
    optimizer_.weight_decay = recipe_.weight_decay();
    for (ParameterSpec& spec : StageParameters(model_, first_layer_, end_layer_))
      AddParameter(std::move(spec), plan.job().seed());
    if (const int channels = AutoencoderChannels(plan, rank, true)) {
      in_width_ = channels;
      decoder_ = AddParameter(BoundaryDecoder(model_, first_layer_, channels), plan.job().seed());
    }
    if (const int channels = AutoencoderChannels(plan, rank, false)) {
      out_width_ = channels;
      encoder_ = AddParameter(BoundaryEncoder(model_, end_layer_, channels), plan.job().seed());
    }
    Version& only = versions_.newest();
    if (device.is_cpu() && !as_on_gpu) {
      for (Parameter& p : only.parameters) {
        p.operand = p.value.requires_grad_(true);
        p.state = ZeroState(p.value.detach());
      }
    } else {
      only.flat = std::make_unique<FlatParameters>(device, precision, &only.parameters);
    }
  }

  absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor input) override {
    RETURN_IF_ERROR(CheckForward(batch, input));
    return Guarded(
        absl::StrCat("forward pass of micro-batch ", batch.micro),
        [&]() -> absl::StatusOr<ForwardResult> { return DoForward(batch, std::move(input)); });
  }

  absl::StatusOr<Tensor> Backward(int32_t micro, Tensor gradient) override {
    const auto it = kept_.find(micro);
    if (it == kept_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("backward pass of micro-batch ", micro, " without its forward pass"));
    }
    const TensorDims& dims = it->second.out;
    if (!last_ && !Fits(gradient, dims)) {
      return absl::InvalidArgumentError(absl::StrCat("gradient of micro-batch ", micro, " is ",
                                                     Text(gradient.dims), ", expected ",
                                                     Text(dims)));
    }
    const Kept kept = std::move(it->second);
    kept_.erase(it);
    return Guarded(
        absl::StrCat("backward pass of micro-batch ", micro),
        [&]() -> absl::StatusOr<Tensor> { return DoBackward(kept, std::move(gradient)); });
  }

  int64_t Elements(GroupPlan::Tensors set) const override {
    return ElementsOf(newest().parameters, set);
  }

  absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first, absl::Span<float> out) override {
    return Guarded("reading gradients",
                   [&] { return ReadGradients(ending().parameters, set, first, out); });
  }

  absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                             absl::Span<const float> in) override {
    return Guarded("writing gradients",
                   [&] { return WriteGradients(set, first, in, &ending().parameters); });
  }

  worker::DeviceGradients* OnDevice() override { return newest().flat != nullptr ? this : nullptr; }

  absl::Status BeginRounds() override {
    return Guarded("beginning rounds of local steps", [&] {
      rounds_.Begin(newest().parameters);
      return absl::OkStatus();
    });
  }

  absl::Status ReadDifference(GroupPlan::Tensors set, int64_t first,
                              absl::Span<float> out) override {
    return Guarded("reading differences",
                   [&] { return rounds_.Read(newest().parameters, set, first, out); });
  }

  absl::Status ApplyDifference(GroupPlan::Tensors set, absl::Span<const float> d,
                               const OuterStep& step) override {
    versions_.Changed();
    return Guarded("outer step", [&] { return rounds_.Apply(set, d, step, &newest().parameters); });
  }

  absl::Status RestoreAgreed(GroupPlan::Tensors set) override {
    versions_.Changed();
    return Guarded("restoring weights", [&] { return rounds_.Restore(set, &newest().parameters); });
  }

  absl::Status BeginOverlapped() override {
    if (!kept_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("micro-batch ", kept_.begin()->first, " is under way"));
    }
    return Guarded("weights of overlapped steps", [&]() -> absl::Status {
      versions_.BeginOverlapped();
      return absl::OkStatus();
    });
  }

  GradientNorm Norm() override {
    GradientNorm norm;
    const absl::Status status = Guarded("gradient norm", [&]() -> absl::Status {
      if (ending().flat != nullptr) {
        norm.sum_squares = ending().flat->SumOfSquares(first_);
        return absl::OkStatus();
      }
      for (const Parameter& p : ending().parameters) {
        const at::Tensor& grad = p.value.grad();
        if (!grad.defined() || (p.tied && !first_)) continue;
        norm.sum_squares += SumOfSquares(grad);
      }
      return absl::OkStatus();
    });
    if (!status.ok()) {
      LogError(status.ToString());
      norm.sum_squares = std::numeric_limits<double>::quiet_NaN();
    }
    norm.finite = std::isfinite(norm.sum_squares);
    return norm;
  }

  absl::Status Apply(const OptimizerStep& step) override {
    if (step.step < 1) return absl::InvalidArgumentError("optimizer steps count from 1");
    const AdamWStep adamw = {step.step, step.learning_rate, step.gradient_scale};
    const absl::Status status = Guarded("optimizer step", [&]() -> absl::Status {
      versions_.Update(optimizer_, adamw, look_ahead_);
      return absl::OkStatus();
    });
    EndStep();
    return status;
  }

  void Discard() override {
    const absl::Status status = Guarded("skipping a step", [&]() -> absl::Status {
      versions_.TakeNewest();
      return absl::OkStatus();
    });
    if (!status.ok()) LogError(status.ToString());
    EndStep();
  }

  absl::StatusOr<std::string> ExportWeights() override {
    return Guarded("export of the weights",
                   [&] { return WriteTensors(Tensors().Weights(Which::kStored)); });
  }

  absl::StatusOr<std::string> ExportOptimizer() override {
    return Guarded("export of the optimizer",
                   [&] { return WriteTensors(Tensors().Optimizer(Which::kStored)); });
  }

  absl::StatusOr<std::string> ExportTied() override {
    return Guarded("export of the tied embedding", [&]() -> absl::StatusOr<std::string> {
      NamedTensors tensors = Tensors().Weights(Which::kCopy);
      if (tensors.empty()) return std::string();
      const NamedTensors moments = Tensors().Optimizer(Which::kCopy);
      tensors.insert(tensors.end(), moments.begin(), moments.end());
      return WriteTensors(tensors);
    });
  }

  std::vector<std::string> TensorNames() const override {
    std::vector<std::string> names;
    for (const Parameter& p : newest().parameters) names.push_back(p.spec.name);
    return names;
  }

  absl::Status ImportWeights(absl::string_view safetensors) override {
    versions_.Changed();
    RETURN_IF_ERROR(ReadTensors(safetensors, Tensors().Weights(Which::kAll), "weights"));
    rounds_.Agree(newest().parameters);
    return absl::OkStatus();
  }

  absl::Status ImportOptimizer(absl::string_view safetensors) override {
    return ReadTensors(safetensors, Tensors().Optimizer(Which::kAll), "optimizer state");
  }

 private:
  absl::StatusOr<Tensor> CopyGradient(GroupPlan::Tensors set, const TensorDims& dims) override {
    return Guarded("copying gradients", [&]() -> absl::StatusOr<Tensor> {
      ASSIGN_OR_RETURN(const at::Tensor all,
                       CopyGradients(ending().parameters, set, dims.elements()));
      return ToWorker(all, dims, /*stays=*/true);
    });
  }

  absl::Status PutGradient(GroupPlan::Tensors set, Tensor gradients) override {
    return Guarded("putting gradients", [&]() -> absl::Status {
      PutGradients(set, FromWorker(std::move(gradients), device_).view({-1}), &ending().parameters);
      return absl::OkStatus();
    });
  }

  StageTensors Tensors() const { return {newest().parameters, rounds_, first_}; }

  Version& ending() { return versions_.ending(); }
  Version& newest() { return versions_.newest(); }
  const Version& newest() const { return versions_.newest(); }

  // Its gradients are done with.
  void EndStep() {
    const absl::Status status = Guarded("clearing the gradients", [&]() -> absl::Status {
      const int ended = versions_.EndStep();
      for (auto it = kept_.begin(); it != kept_.end();)
        it = it->second.version == ended ? kept_.erase(it) : std::next(it);
      return absl::OkStatus();
    });
    if (!status.ok()) LogError(status.ToString());
  }

  // Its place in the parameters.
  int AddParameter(ParameterSpec spec, uint64_t seed) {
    Parameter p;
    p.tied = spec.name == kTokenEmbedding && IsTied(model_) && !(first_ && last_);
    p.in_products = !absl::StrContains(spec.name, ".ln_");
    p.value = at::empty(spec.shape, at::kFloat);
    FillInitial(spec, seed, p.value.data_ptr<float>());
    p.spec = std::move(spec);
    std::vector<Parameter>& parameters = newest().parameters;
    parameters.push_back(std::move(p));
    return static_cast<int>(parameters.size()) - 1;
  }

  static bool Fits(const Tensor& t, const TensorDims& d) {
    return t.dims.samples == d.samples && t.dims.positions == d.positions &&
           t.dims.hidden == d.hidden &&
           (t.device != nullptr || static_cast<int64_t>(t.data.size()) == d.elements());
  }

  absl::Status CheckForward(const MicroBatch& batch, const Tensor& input) const {
    if (batch.samples < 1 || batch.positions < 1 || batch.positions > model_.context()) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", batch.micro, " of ", batch.samples, " x ", batch.positions,
                       " positions; model.context is ", model_.context()));
    }
    if (kept_.count(batch.micro) != 0 && batch.train) {
      return absl::FailedPreconditionError(absl::StrCat("second forward pass of micro-batch ",
                                                        batch.micro, " before its backward pass"));
    }
    if (first_) RETURN_IF_ERROR(CheckIds(batch, batch.tokens, model_.vocabulary(), "tokens"));
    if (last_) RETURN_IF_ERROR(CheckIds(batch, batch.targets, model_.vocabulary(), "targets"));
    const TensorDims dims{batch.samples, batch.positions, in_width_};
    if (!first_ && !Fits(input, dims)) {
      return absl::InvalidArgumentError(absl::StrCat("activation of micro-batch ", batch.micro,
                                                     " is ", Text(input.dims), ", expected ",
                                                     Text(dims)));
    }
    return absl::OkStatus();
  }

  ForwardResult DoForward(const MicroBatch& batch, Tensor input) {
    const c10::AutoGradMode gradients(batch.train);
    Kept kept;
    kept.in = {batch.samples, batch.positions, in_width_};
    kept.out = {batch.samples, batch.positions, out_width_};
    kept.loss_scale = batch.loss_scale;
    kept.version = versions_.For(batch.train, batch.ahead);
    Version& version = versions_.at(kept.version);
    std::vector<Parameter>& parameters = version.parameters;
    if (version.flat != nullptr) {
      UseArithmetic(precision_, recipe_.deterministic());
      version.flat->Refresh();
    }
    at::Tensor x;
    size_t next = 0;
    if (first_) {
      x = EmbedTokens(version, batch, &kept);
      next = 2;
    } else {
      kept.input = FromWorker(std::move(input), device_).requires_grad_(batch.train);
      x = decoder_ < 0 ? kept.input
                       : Project(kept.input, parameters[decoder_].operand).to(at::kFloat);
    }
    for (int layer = first_layer_; layer < end_layer_; ++layer, next += kBlockTensors) {
      x = Block(x, WeightsAt(parameters, next), model_.heads(), Mask(batch.positions),
                norm_epsilon_);
    }
    ForwardResult result;
    if (last_) {
      x = Head(&version, x, next, batch, &kept, &result);
    } else {
      if (encoder_ >= 0) x = Project(x, parameters[encoder_].operand);
      result.activation = ToWorker(x, kept.out, version.flat != nullptr);
    }
    kept.output = std::move(x);
    if (batch.train) kept_.emplace(batch.micro, std::move(kept));
    return result;
  }

  // Flat parameters: no graph, which would make a gradient as large as the table of each
  // micro-batch.
  at::Tensor EmbedTokens(const Version& version, const MicroBatch& batch, Kept* kept) const {
    const at::Tensor tokens = IdsOn(device_, batch, batch.tokens);
    const at::Tensor &wte = version.parameters[0].value, &wpe = version.parameters[1].value;
    if (version.flat == nullptr) return Embed(tokens, wte, wpe);
    const c10::AutoGradMode no_gradients(false);
    kept->tokens = tokens;
    kept->input = Embed(tokens, wte, wpe);
    return kept->input.requires_grad_(batch.train);
  }

  // What the backward pass begins with.
  at::Tensor Head(Version* version, const at::Tensor& x, size_t next, const MicroBatch& batch,
                  Kept* kept, ForwardResult* forward) {
    std::vector<Parameter>& parameters = version->parameters;
    Parameter& embedding = first_ && IsTied(model_) ? parameters.front() : parameters[next + 2];
    const at::Tensor in =
        HeadNorm(x, parameters[next].operand, parameters[next + 1].operand, norm_epsilon_);
    const at::Tensor targets = IdsOn(device_, batch, batch.targets);
    if (version->flat == nullptr) {
      const at::Tensor losses = TokenLosses(Logits(in, embedding.operand), targets);
      forward->loss_sum = losses.detach().sum(at::kDouble).item<double>();
      return losses;
    }
    const at::Tensor typed = in.to(embedding.operand.scalar_type());
    HeadOptions options;
    options.scale = batch.loss_scale;
    options.gradients = batch.train;
    HeadResult result = HeadLoss(typed.detach(), embedding.operand.detach(), targets.view({-1}),
                                 options, embedding.value.grad());
    kept->head_gradient = std::move(result.gradient);
    result.gradient = at::Tensor();
    if (batch.train && batch.late_loss) {
      forward->late_loss = [result]() -> absl::StatusOr<double> {
        return Guarded("loss", [&]() -> absl::StatusOr<double> { return result.LossSum(); });
      };
    } else {
      forward->loss_sum = result.LossSum();
    }
    return typed;
  }

  Tensor DoBackward(const Kept& kept, Tensor gradient) {
    Version& version = versions_.at(kept.version);
    FlatParameters* const flat = version.flat.get();
    if (flat != nullptr) UseArithmetic(precision_, recipe_.deterministic());
    if (!last_) {
      kept.output.backward(FromWorker(std::move(gradient), device_).to(kept.output.scalar_type()));
    } else if (flat == nullptr) {
      kept.output.backward(at::full_like(kept.output, kept.loss_scale));
    } else {
      kept.output.backward(kept.head_gradient);
    }
    if (flat != nullptr) flat->AddUp();
    if (first_ && flat != nullptr) AddEmbedded(kept, &version.parameters);
    return first_ ? Tensor() : ToWorker(kept.input.grad(), kept.in, flat != nullptr);
  }

  void AddEmbedded(const Kept& kept, std::vector<Parameter>* parameters) const {
    const at::Tensor& gradient = kept.input.grad();
    (*parameters)[0].value.mutable_grad().index_add_(0, kept.tokens.view({-1}),
                                                     gradient.view({-1, model_.hidden()}));
    (*parameters)[1].value.mutable_grad().narrow(0, 0, gradient.size(1)).add_(gradient.sum(0));
  }

  static BlockWeights WeightsAt(const std::vector<Parameter>& parameters, size_t i) {
    const auto at = [&](size_t k) { return parameters[i + k].operand; };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11)};
  }

  const at::Tensor& Mask(int64_t positions) {
    if (mask_positions_ != positions) {
      mask_ =
          CausalMask(positions, newest().parameters.front().operand.options().requires_grad(false));
      mask_positions_ = positions;
    }
    return mask_;
  }

  const ModelSpec model_;
  const double norm_epsilon_;
  const RecipeSpec recipe_;
  const int first_layer_;
  const int end_layer_;
  const bool first_;
  const bool last_;
  const double look_ahead_;  // overlapped steps: share of the last update; 0: none
  const c10::Device device_;
  const Precision precision_;
  int64_t in_width_ = model_.hidden();  // channels of the boundary below
  int64_t out_width_ = model_.hidden();
  Rounds rounds_;
  int decoder_ = -1;  // in the parameters; -1: no autoencoder at that boundary
  int encoder_ = -1;
  AdamWOptions optimizer_;
  Versions versions_;
  std::map<int32_t, Kept> kept_;  // by micro-batch; as many as the schedule has in flight
  at::Tensor mask_;
  int64_t mask_positions_ = -1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::Stage>> MakeGpt2Stage(const Plan& plan, int rank,
                                                             const EngineOptions& options) {
  RETURN_IF_ERROR(CheckStagePlan(plan, rank));
  return Guarded("making the stage", [&]() -> absl::StatusOr<std::unique_ptr<worker::Stage>> {
    ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(options.device));
    ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(plan.job().recipe()));
    SetThreads(options.threads);
    return std::make_unique<Gpt2Stage>(plan, rank, device, precision, options.as_on_gpu);
  });
}

}  // namespace isthmus::engine
