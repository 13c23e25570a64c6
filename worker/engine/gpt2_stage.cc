#include "worker/engine/gpt2_stage.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "proto/model/tensor_names.h"
#include "worker/engine/adamw.h"
#include "worker/engine/blocks.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/parameters.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

using worker::ForwardResult;
using worker::GradientNorm;
using worker::MicroBatch;
using worker::OptimizerStep;
using worker::Tensor;

constexpr char kPrefix[] = "transformer.";
constexpr char kAverage[] = ".exp_avg";
constexpr char kAverageOfSquares[] = ".exp_avg_sq";

// A micro-batch between Forward and Backward.
struct Kept {
  at::Tensor input;   // a leaf; not on the first stage
  at::Tensor output;  // activation, or the losses of the tokens
  double loss_scale = 1;
  TensorDims in, out;  // of what came and of what goes, in the boundaries' channels
};

// The channels of the autoencoder at the boundary below, or above, a rank; 0: none.
int AutoencoderChannels(const Plan& plan, int rank, bool below) {
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() == LinkPlan::BOUNDARY && (below ? link.upper() : link.lower()) == rank &&
        link.forward().kind() == CodecSpec::AUTOENCODER)
      return link.forward().channels();
  }
  return 0;
}

std::string Text(const TensorDims& d) {
  return absl::StrCat(d.samples, " x ", d.positions, " x ", d.hidden);
}

class Gpt2Stage : public worker::Stage {
 public:
  Gpt2Stage(const Plan& plan, int rank, c10::Device device)
      : model_(plan.job().model()),
        norm_epsilon_(NormEpsilon(model_)),
        recipe_(plan.job().recipe()),
        first_layer_(plan.ranks(rank).first_layer()),
        end_layer_(plan.ranks(rank).end_layer()),
        first_(first_layer_ == 0),
        last_(end_layer_ == model_.layers()),
        device_(device) {
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

  int64_t Elements(GroupPlan::Tensors set) const override { return ElementsOf(parameters_, set); }

  absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first, absl::Span<float> out) override {
    return Guarded("reading gradients",
                   [&] { return ReadGradients(parameters_, set, first, out); });
  }

  absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                             absl::Span<const float> in) override {
    return Guarded("writing gradients",
                   [&] { return WriteGradients(set, first, in, &parameters_); });
  }

  GradientNorm Norm() override {
    GradientNorm norm;
    const absl::Status status = Guarded("gradient norm", [&]() -> absl::Status {
      for (const Parameter& p : parameters_) {
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
    const absl::Status status = Guarded("optimizer step", [&]() -> absl::Status {
      for (Parameter& p : parameters_) {
        AdamWUpdate(optimizer_, {step.step, step.learning_rate, step.gradient_scale}, p.spec.decay,
                    p.value.grad(), p.value.detach(), &p.state);
      }
      return absl::OkStatus();
    });
    Discard();
    return status;
  }

  void Discard() override {
    kept_.clear();
    for (Parameter& p : parameters_) p.value.mutable_grad() = at::Tensor();
  }

  absl::StatusOr<std::string> ExportWeights() override {
    return Guarded("export of the weights", [&]() -> absl::StatusOr<std::string> {
      std::vector<std::pair<std::string, at::Tensor>> tensors;
      for (const Parameter& p : parameters_) {
        if (Exports(p)) tensors.emplace_back(p.spec.name, p.value.detach());
      }
      return Write(tensors);
    });
  }

  absl::StatusOr<std::string> ExportOptimizer() override {
    return Guarded("export of the optimizer", [&]() -> absl::StatusOr<std::string> {
      std::vector<std::pair<std::string, at::Tensor>> tensors;
      for (const Parameter& p : parameters_) {
        if (!Exports(p)) continue;
        tensors.emplace_back(p.spec.name + kAverage, p.state.exp_avg);
        tensors.emplace_back(p.spec.name + kAverageOfSquares, p.state.exp_avg_sq);
      }
      return Write(tensors);
    });
  }

  absl::StatusOr<std::string> ExportTied() override {
    return Guarded("export of the tied embedding", [&]() -> absl::StatusOr<std::string> {
      std::vector<std::pair<std::string, at::Tensor>> tensors;
      for (const Parameter& p : parameters_) {
        if (Exports(p)) continue;
        tensors.emplace_back(p.spec.name, p.value.detach());
        tensors.emplace_back(p.spec.name + kAverage, p.state.exp_avg);
        tensors.emplace_back(p.spec.name + kAverageOfSquares, p.state.exp_avg_sq);
      }
      if (tensors.empty()) return std::string();
      return Write(tensors);
    });
  }

  std::vector<std::string> TensorNames() const override {
    std::vector<std::string> names;
    for (const Parameter& p : parameters_) names.push_back(p.spec.name);
    return names;
  }

  absl::Status ImportWeights(absl::string_view safetensors) override {
    std::vector<std::pair<std::string, at::Tensor>> targets;
    for (const Parameter& p : parameters_) targets.emplace_back(p.spec.name, p.value.detach());
    return Read(safetensors, targets, "weights");
  }

  absl::Status ImportOptimizer(absl::string_view safetensors) override {
    std::vector<std::pair<std::string, at::Tensor>> targets;
    for (const Parameter& p : parameters_) {
      targets.emplace_back(p.spec.name + kAverage, p.state.exp_avg);
      targets.emplace_back(p.spec.name + kAverageOfSquares, p.state.exp_avg_sq);
    }
    return Read(safetensors, targets, "optimizer state");
  }

 private:
  // Its place in parameters_.
  int AddParameter(ParameterSpec spec, uint64_t seed) {
    Parameter p;
    p.tied = spec.name == kTokenEmbedding && !(first_ && last_);
    const at::Tensor host = at::empty(spec.shape, at::kFloat);
    FillInitial(spec, seed, host.data_ptr<float>());
    p.value = host.to(device_).requires_grad_(true);
    p.state = ZeroState(p.value.detach(), /*on_host=*/p.tied);
    p.spec = std::move(spec);
    parameters_.push_back(std::move(p));
    return static_cast<int>(parameters_.size()) - 1;
  }

  bool Exports(const Parameter& p) const { return !p.tied || first_; }
  static bool Fits(const Tensor& t, const TensorDims& d) {
    return t.dims.samples == d.samples && t.dims.positions == d.positions &&
           t.dims.hidden == d.hidden && static_cast<int64_t>(t.data.size()) == d.elements();
  }

  absl::Status CheckIds(const MicroBatch& batch, absl::Span<const uint16_t> ids,
                        absl::string_view what) const {
    if (static_cast<int64_t>(ids.size()) != batch.samples * batch.positions) {
      return absl::InvalidArgumentError(absl::StrCat("micro-batch ", batch.micro, " has ",
                                                     ids.size(), " ", what, ", expected ",
                                                     batch.samples, " x ", batch.positions));
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < model_.vocabulary()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", batch.micro, ", sample ", i / batch.positions, ", position ",
                       i % batch.positions, ": token ", ids[i], " is beyond model.vocabulary (",
                       model_.vocabulary(), ")"));
    }
    return absl::OkStatus();
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
    if (first_) RETURN_IF_ERROR(CheckIds(batch, batch.tokens, "tokens"));
    if (last_) RETURN_IF_ERROR(CheckIds(batch, batch.targets, "targets"));
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
    at::Tensor x;
    size_t next = 0;
    if (first_) {
      x = Embed(Ids(batch, batch.tokens), parameters_[0].value, parameters_[1].value);
      next = 2;
    } else {
      kept.input = FromWorker(std::move(input)).requires_grad_(batch.train);
      x = decoder_ < 0 ? kept.input : Project(kept.input, parameters_[decoder_].value);
    }
    for (int layer = first_layer_; layer < end_layer_; ++layer, next += kBlockTensors) {
      x = Block(x, WeightsAt(next), model_.heads(), Mask(batch.positions), norm_epsilon_);
    }
    ForwardResult result;
    if (last_) {
      const Parameter& embedding = first_ ? parameters_.front() : parameters_[next + 2];
      x = TokenLosses(Logits(x, parameters_[next].value, parameters_[next + 1].value,
                             embedding.value, norm_epsilon_),
                      Ids(batch, batch.targets));
      result.loss_sum = x.detach().sum(at::kDouble).item<double>();
    } else {
      if (encoder_ >= 0) x = Project(x, parameters_[encoder_].value);
      result.activation = ToWorker(x.detach(), kept.out);
    }
    kept.output = std::move(x);
    if (batch.train) kept_.emplace(batch.micro, std::move(kept));
    return result;
  }

  Tensor DoBackward(const Kept& kept, Tensor gradient) {
    kept.output.backward(last_ ? at::full_like(kept.output, kept.loss_scale)
                               : FromWorker(std::move(gradient)));
    return first_ ? Tensor() : ToWorker(kept.input.grad(), kept.in);
  }

  BlockWeights WeightsAt(size_t i) const {
    const auto at = [&](size_t k) { return parameters_[i + k].value; };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11)};
  }

  const at::Tensor& Mask(int64_t positions) {
    if (mask_positions_ != positions) {
      mask_ = CausalMask(positions, at::TensorOptions().dtype(at::kFloat).device(device_));
      mask_positions_ = positions;
    }
    return mask_;
  }

  at::Tensor Ids(const MicroBatch& batch, absl::Span<const uint16_t> ids) const {
    const at::Tensor host = at::empty({batch.samples, batch.positions}, at::kLong);
    std::copy(ids.begin(), ids.end(), host.data_ptr<int64_t>());
    return host.to(device_);
  }

  // Takes the vector over: no copy on the CPU.
  at::Tensor FromWorker(Tensor tensor) const {
    auto* data = new std::vector<float>(std::move(tensor.data));
    const TensorDims& d = tensor.dims;
    return at::from_blob(
               data->data(), {d.samples, d.positions, d.hidden}, [data](void*) { delete data; },
               at::TensorOptions().dtype(at::kFloat))
        .to(device_);
  }

  static Tensor ToWorker(const at::Tensor& tensor, const TensorDims& dims) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    const float* data = host.data_ptr<float>();
    return Tensor{dims, std::vector<float>(data, data + host.numel())};
  }

  static absl::StatusOr<std::string> Write(
      const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    std::vector<at::Tensor> host;  // keeps what the items point to
    std::vector<SafetensorsItem> items;
    for (const auto& [name, tensor] : tensors) {
      host.push_back(tensor.cpu().contiguous());
      const at::Tensor& t = host.back();
      items.push_back({name, "F32", t.sizes().vec(),
                       absl::string_view(static_cast<const char*>(t.data_ptr()), t.nbytes())});
    }
    return WriteSafetensors(std::move(items), {{"format", "pt"}});
  }

  // Checks every tensor before it changes the first.
  static absl::Status Read(absl::string_view bytes,
                           const std::vector<std::pair<std::string, at::Tensor>>& targets,
                           absl::string_view what) {
    ASSIGN_OR_RETURN(const auto entries, ParseSafetensors(bytes));
    std::vector<const SafetensorsEntry*> found;  // null: it stays as it is
    for (const auto& [name, tensor] : targets) {
      auto it = entries.find(name);
      if (it == entries.end()) it = entries.find(std::string(absl::StripPrefix(name, kPrefix)));
      const std::vector<int64_t> shape = tensor.sizes().vec();
      const bool same = it != entries.end() && it->second.shape == shape;
      if (!same && IsOwnTensor(name)) {
        const bool moment = !absl::EndsWith(name, ".weight");
        if (!moment)
          LogWarning(what, ": ", name, " of [", absl::StrJoin(shape, ", "),
                     "] is not in the checkpoint: this autoencoder starts anew");
        found.push_back(nullptr);
        continue;
      }
      if (it == entries.end())
        return absl::NotFoundError(absl::StrCat(what, ": tensor ", name, " is missing"));
      if (it->second.shape != shape) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, ": tensor ", name, " is [", absl::StrJoin(it->second.shape, ", "),
                         "] but the job's model needs [", absl::StrJoin(shape, ", "), "]"));
      }
      const std::string& type = it->second.dtype;
      if (type != "F32" && type != "F16" && type != "BF16") {
        return absl::InvalidArgumentError(absl::StrCat(what, ": tensor ", name, " has type ", type,
                                                       "; convert it to F32, F16 or BF16"));
      }
      found.push_back(&it->second);
    }
    return Guarded(absl::StrCat("import of the ", what), [&]() -> absl::Status {
      for (size_t i = 0; i < targets.size(); ++i) {
        if (found[i] == nullptr) continue;
        ASSIGN_OR_RETURN(std::vector<float> values, ToFloats(*found[i]));
        at::Tensor target = targets[i].second;
        target.copy_(
            at::from_blob(values.data(), target.sizes(), at::TensorOptions().dtype(at::kFloat)));
      }
      return absl::OkStatus();
    });
  }

  const ModelSpec model_;
  const double norm_epsilon_;
  const RecipeSpec recipe_;
  const int first_layer_;
  const int end_layer_;
  const bool first_;
  const bool last_;
  const c10::Device device_;
  int64_t in_width_ = model_.hidden();  // channels of the boundary below
  int64_t out_width_ = model_.hidden();
  int decoder_ = -1;  // in parameters_; -1: no autoencoder at that boundary
  int encoder_ = -1;
  AdamWOptions optimizer_;
  std::vector<Parameter> parameters_;  // in the order of StageParameters
  std::map<int32_t, Kept> kept_;       // by micro-batch; as many as the schedule has in flight
  at::Tensor mask_;
  int64_t mask_positions_ = -1;
};

absl::Status CheckPlan(const Plan& plan, int rank) {
  if (rank < 0 || rank >= plan.ranks_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", plan.ranks_size(), " ranks, none is ", rank));
  }
  const ModelSpec& m = plan.job().model();
  if (m.layers() < 1 || m.hidden() < 1 || m.heads() < 1 || m.hidden() % m.heads() != 0 ||
      m.context() < 1 || m.vocabulary() < 2 || m.vocabulary() > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan's model makes no sense: ", m.ShortDebugString()));
  }
  const RankPlan& r = plan.ranks(rank);
  if (r.first_layer() < 0 || r.end_layer() <= r.first_layer() || r.end_layer() > m.layers()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan's stage ", r.stage(), " holds layers ",
                                                   r.first_layer(), " to ", r.end_layer(), " of ",
                                                   m.layers()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<worker::Stage>> MakeGpt2Stage(const Plan& plan, int rank,
                                                             const EngineOptions& options) {
  RETURN_IF_ERROR(CheckPlan(plan, rank));
  return Guarded("making the stage", [&]() -> absl::StatusOr<std::unique_ptr<worker::Stage>> {
    ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(options.device));
    SetThreads(options.threads);
    return std::make_unique<Gpt2Stage>(plan, rank, device);
  });
}

}  // namespace isthmus::engine
