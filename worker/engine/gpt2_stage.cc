#include "worker/engine/gpt2_stage.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "worker/engine/adamw.h"
#include "worker/engine/batch_ids.h"
#include "worker/engine/device_tensor.h"
#include "worker/engine/flat_parameters.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/head.h"
#include "worker/engine/held_slice.h"
#include "worker/engine/host_copy.h"
#include "worker/engine/layer_passes.h"
#include "worker/engine/micro_check.h"
#include "worker/engine/parameters.h"
#include "worker/engine/recorded_passes.h"
#include "worker/engine/rounds.h"
#include "worker/engine/runtime.h"
#include "worker/engine/stage_tensors.h"
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

class Gpt2Stage : public worker::Stage, private worker::DeviceGradients {
 public:
  Gpt2Stage(const Plan& plan, int rank, c10::Device device, Precision precision, bool as_on_gpu)
      : model_(plan.job().model()),
        recipe_(plan.job().recipe()),
        first_layer_(plan.ranks(rank).first_layer()),
        end_layer_(plan.ranks(rank).end_layer()),
        first_(first_layer_ == 0),
        last_(end_layer_ == model_.layers()),
        cuts_(BucketLayers(OwnShapes(plan, rank), plan, rank)),
        layer_ends_(EndsOf(OwnShapes(plan, rank))),
        look_ahead_(plan.job().strategy().look_ahead() ? kLookAhead : 0),
        device_(device),
        precision_(precision),
        optimizer_{recipe_.beta1(), recipe_.beta2(), recipe_.epsilon(), recipe_.weight_decay()} {
    LayerPasses::Layers layers{model_, first_layer_, end_layer_, cuts_, recipe_.recompute()};
    if (const int channels = AutoencoderChannels(plan, rank, true)) {
      in_width_ = channels;
      layers.decoder =
          AddParameter(BoundaryDecoder(model_, first_layer_, channels), plan.job().seed());
    }
    for (ParameterSpec& spec :
         StageParameters(model_, first_layer_, end_layer_, HeldSlice::AtStart(plan, rank)))
      AddParameter(std::move(spec), plan.job().seed());
    if (const int channels = AutoencoderChannels(plan, rank, false)) {
      out_width_ = channels;
      layers.encoder =
          AddParameter(BoundaryEncoder(model_, end_layer_, channels), plan.job().seed());
    }
    passes_ = std::make_unique<LayerPasses>(std::move(layers));
    Version& only = versions_.newest();
    if (device.is_cpu() && !as_on_gpu) {
      for (Parameter& p : only.parameters) {
        p.operand = p.value.requires_grad_(true);
        p.state = ZeroState(p.value.detach());
      }
    } else {
      only.flat = std::make_unique<FlatParameters>(device, precision, &only.parameters);
    }
    if (Deals(plan)) slice_ = std::make_unique<HeldSlice>(plan, rank, &versions_);
  }

  absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor input) override {
    RETURN_IF_ERROR(CheckForward(batch, input));
    return Guarded(
        absl::StrCat("forward pass of micro-batch ", batch.micro),
        [&]() -> absl::StatusOr<ForwardResult> { return DoForward(batch, std::move(input)); });
  }

  absl::StatusOr<Tensor> Backward(int32_t micro, Tensor gradient) override {
    ASSIGN_OR_RETURN(Tensor below, BackwardPiece(micro, 0, std::move(gradient)));
    for (int piece = 1; piece <= static_cast<int>(cuts_.size()); ++piece) {
      ASSIGN_OR_RETURN(below, BackwardPiece(micro, piece, Tensor()));
    }
    return below;
  }

  absl::StatusOr<Tensor> BackwardPiece(int32_t micro, int piece, Tensor gradient) override {
    const auto it = kept_.find(micro);
    if (it == kept_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("backward pass of micro-batch ", micro, " without its forward pass"));
    }
    if (piece != it->second.pieces) {
      return absl::FailedPreconditionError(absl::StrCat(
          "piece ", piece, " of the backward pass of ", "micro-batch ", micro, " out of order"));
    }
    const TensorDims& dims = it->second.out;
    if (!last_ && piece == 0) RETURN_IF_ERROR(CheckEdge("gradient", micro, gradient, dims));
    absl::StatusOr<Tensor> below = Guarded(
        absl::StrCat("backward pass of micro-batch ", micro),
        [&]() -> absl::StatusOr<Tensor> { return DoBackward(&it->second, std::move(gradient)); });
    if (!below.ok() || piece == static_cast<int>(cuts_.size())) kept_.erase(it);
    return below;
  }

  int64_t Elements(GroupPlan::Tensors set) const override {
    return ElementsOf(newest().parameters, set);
  }

  std::vector<int64_t> LayerEnds() const override { return layer_ends_; }

  absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first, absl::Span<float> out) override {
    return Guarded("reading gradients",
                   [&] { return ReadGradients(ending().parameters, set, first, out); });
  }

  absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                             absl::Span<const float> in) override {
    return Guarded("writing gradients",
                   [&] { return WriteGradients(set, first, in, &ending().parameters); });
  }

  absl::Status TakeMomentum(GroupPlan::Tensors set, int64_t first, int64_t size,
                            double share) override {
    return Guarded("first moments", [&] {
      return TakeMoments(set, first, size, share, optimizer_.beta1, &ending().parameters);
    });
  }

  worker::DeviceGradients* OnDevice() override { return newest().flat != nullptr ? this : nullptr; }
  worker::StageSlice* OfSlice() override { return slice_.get(); }

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

  absl::Status ApplyDifference(GroupPlan::Tensors set, int64_t first, absl::Span<const float> d,
                               const OuterStep& step) override {
    versions_.Changed();
    return Guarded("outer step",
                   [&] { return rounds_.Apply(set, first, d, step, &newest().parameters); });
  }

  absl::Status RestoreAgreed(GroupPlan::Tensors set, int64_t first, int64_t size) override {
    versions_.Changed();
    return Guarded("restoring weights",
                   [&] { return rounds_.Restore(set, first, size, &newest().parameters); });
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
    norm.sum_squares = std::numeric_limits<double>::quiet_NaN();
    Logged("gradient norm", [&] {
      const Version& version = ending();
      norm.sum_squares = version.flat != nullptr ? version.flat->SumOfSquares(first_)
                                                 : SumOfSquares(version.parameters, first_);
    });
    norm.finite = std::isfinite(norm.sum_squares);
    return norm;
  }

  absl::Status Apply(const OptimizerStep& step) override {
    if (step.step < 1) return absl::InvalidArgumentError("optimizer steps count from 1");
    const AdamWStep adamw = {step.step, step.learning_rate, step.gradient_scale, step.frozen_after,
                             slice_ != nullptr ? slice_->CountStep() : 0};
    const absl::Status status = Guarded("optimizer step", [&]() -> absl::Status {
      versions_.Update(optimizer_, adamw, look_ahead_);
      return absl::OkStatus();
    });
    EndStep();
    return status;
  }

  void Discard() override {
    Logged("skipping a step", [&] { versions_.TakeNewest(); });
    EndStep();
  }

  std::vector<worker::StageTensor> Tensors() const override { return Stored().List(); }

  absl::Status ReadTensor(int i, int64_t first, absl::Span<float> out) override {
    return Guarded("reading a tensor", [&] { return Stored().Read(i, first, out); });
  }

  absl::Status WriteTensor(int i, int64_t first, absl::Span<const float> in) override {
    versions_.Changed();
    return Guarded("writing a tensor", [&] { return Stored().Write(i, first, in, &rounds_); });
  }

 private:
  absl::StatusOr<Tensor> CopyGradient(GroupPlan::Tensors set, int64_t first,
                                      const TensorDims& dims) override {
    return Guarded("copying gradients", [&]() -> absl::StatusOr<Tensor> {
      ASSIGN_OR_RETURN(const at::Tensor all,
                       CopyGradients(&ending().parameters, set, first, dims.elements()));
      return ToWorker(all, dims, /*stays=*/true);
    });
  }

  absl::Status PutGradient(GroupPlan::Tensors set, int64_t first, Tensor gradients) override {
    return Guarded("putting gradients", [&] {
      return PutGradients(set, first, FromWorker(std::move(gradients), device_).view({-1}),
                          &ending().parameters);
    });
  }

  StageTensors Stored() const { return {newest().parameters, rounds_, first_}; }

  Version& ending() { return versions_.ending(); }
  Version& newest() { return versions_.newest(); }
  const Version& newest() const { return versions_.newest(); }

  // Its gradients are done with.
  void EndStep() {
    Logged("clearing the gradients", [&] {
      const int ended = versions_.EndStep();
      for (auto it = kept_.begin(); it != kept_.end();) {
        const bool ends = it->second.version == ended;
        if (ends && it->second.recorded != nullptr) it->second.recorded->Release();
        it = ends ? kept_.erase(it) : std::next(it);
      }
    });
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

  absl::Status CheckForward(const MicroBatch& batch, const Tensor& input) const {
    RETURN_IF_ERROR(CheckMicroBatch(model_, batch));
    if (kept_.count(batch.micro) != 0 && batch.train) {
      return absl::FailedPreconditionError(absl::StrCat("second forward pass of micro-batch ",
                                                        batch.micro, " before its backward pass"));
    }
    if (slice_ != nullptr && !batch.train && !slice_->together())
      return absl::FailedPreconditionError("a validation pass of a slice alone");
    if (first_) RETURN_IF_ERROR(CheckInputs(model_, batch));
    if (last_) RETURN_IF_ERROR(CheckTargets(model_, batch));
    const TensorDims dims{batch.samples, batch.positions, in_width_};
    return first_ ? absl::OkStatus() : CheckEdge("activation", batch.micro, input, dims);
  }

  ForwardResult DoForward(const MicroBatch& batch, Tensor input) {
    const c10::AutoGradMode gradients(batch.train);
    Pass kept;
    kept.in = {batch.samples, batch.positions, in_width_};
    kept.out = {batch.samples, batch.positions, out_width_};
    kept.loss_scale = batch.loss_scale;
    kept.version = versions_.For(batch.train, batch.ahead);
    FlatParameters* const flat = versions_.at(kept.version).flat.get();
    if (flat != nullptr) {
      UseArithmetic(precision_, recipe_.deterministic());
      flat->Refresh();
    }
    PassInputs in;
    if (first_) in.tokens = IdsOn(device_, batch, batch.tokens);
    if (last_) in.targets = IdsOn(device_, batch, batch.targets);
    if (!first_) in.activation = FromWorker(std::move(input), device_);
    const PassOutputs out = ForwardPass(batch.train, in, &kept);
    ForwardResult result;
    if (!last_) {
      result.activation =
          ToWorker(kept.recorded != nullptr ? out.activation.clone() : out.activation, kept.out,
                   flat != nullptr);
    } else if (flat != nullptr && batch.train && batch.late_loss) {
      result.late_loss = LateLoss(out.loss);
    } else {
      result.loss_sum = HostCopy(out.loss).Wait().item<double>();
    }
    if (out.correct.defined()) result.correct = HostCopy(out.correct).Wait().item<int64_t>();
    if (batch.train) kept_.emplace(batch.micro, std::move(kept));
    return result;
  }

  // The forward pass, from a recorded graph where there is one to be had. One whose backward pass
  // comes in pieces is not recorded.
  PassOutputs ForwardPass(bool train, const PassInputs& in, Pass* kept) {
    RecordedPass* const recorded =
        train && cuts_.empty() ? recorded_.Take(device_, *kept) : nullptr;
    if (recorded != nullptr) {
      try {
        const PassOutputs out =
            recorded->Forward(device_, in, [&](const PassInputs& there, Pass* pass) {
              *pass = *kept;
              return Compute(train, there, pass);
            });
        kept->recorded = recorded;
        return out;
      } catch (const std::exception& e) {
        LogWarning("passes are not recorded as graphs, which would be faster: ", e.what());
        recorded_.Disable();
      }
    }
    return Compute(train, in, kept);
  }

  PassOutputs Compute(bool train, const PassInputs& in, Pass* pass) {
    return passes_->Forward(train, in, slice_.get(), &versions_.at(pass->version), pass);
  }

  // The next piece; all of them where there are no cuts.
  Tensor DoBackward(Pass* kept, Tensor gradient) {
    const bool flat = versions_.at(kept->version).flat != nullptr;
    if (flat) UseArithmetic(precision_, recipe_.deterministic());
    const bool from_above = !last_ && !kept->from_cut.defined();
    const at::Tensor above = from_above ? FromWorker(std::move(gradient), device_) : at::Tensor();
    const auto backward = [this](Pass* pass, const at::Tensor& there) {
      return passes_->Backward(there, slice_.get(), &versions_.at(pass->version), pass);
    };
    ++kept->pieces;
    const at::Tensor below = kept->recorded != nullptr
                                 ? kept->recorded->Backward(device_, above, backward)
                                 : backward(kept, above);
    return below.defined() ? ToWorker(below, kept->in, flat) : Tensor();
  }

  const ModelSpec model_;
  const RecipeSpec recipe_;
  const int first_layer_;
  const int end_layer_;
  const bool first_;
  const bool last_;
  const std::vector<int> cuts_;  // layers below which a pass is cut, from the top on
  const std::vector<int64_t> layer_ends_;
  const double look_ahead_;  // overlapped steps: share of the last update; 0: none
  const c10::Device device_;
  const Precision precision_;
  int64_t in_width_ = model_.hidden();  // channels of the boundary below
  int64_t out_width_ = model_.hidden();
  Rounds rounds_;
  const AdamWOptions optimizer_;
  Versions versions_;
  std::unique_ptr<LayerPasses> passes_;
  std::unique_ptr<HeldSlice> slice_;  // null: it trains all of its layers
  RecordedPasses recorded_;
  std::map<int32_t, Pass> kept_;  // by micro-batch; as many as the schedule has in flight
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::Stage>> MakeGpt2Stage(const Plan& plan, int rank,
                                                             const EngineOptions& options) {
  RETURN_IF_ERROR(CheckStagePlan(plan, rank));
  return Guarded("making the stage", [&]() -> absl::StatusOr<std::unique_ptr<worker::Stage>> {
    ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(options.device));
    ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(plan.job().recipe()));
    SetThreads(options.threads);
    UseOwnStream(device);
    return std::make_unique<Gpt2Stage>(plan, rank, device, precision, options.as_on_gpu);
  });
}

}  // namespace isthmus::engine
