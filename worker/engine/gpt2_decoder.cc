#include "worker/engine/gpt2_decoder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "proto/model/tensor_names.h"
#include "worker/engine/blocks.h"
#include "worker/engine/gpt2_parameters.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr char kPrefix[] = "transformer.";

struct Layer {
  BlockWeights weights;
  at::Tensor keys, values;  // heads x context x width of a head; the first `seen` positions count
};

class Gpt2Decoder : public generate::Decoder {
 public:
  Gpt2Decoder(const ModelSpec& model, c10::Device device, const std::vector<at::Tensor>& p,
              at::Tensor head)
      : model_(model), device_(device), tokens_(p[0]), positions_(p[1]), head_(std::move(head)) {
    const std::vector<int64_t> kept = {model.heads(), model.context(),
                                       model.hidden() / model.heads()};
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    size_t i = 2;
    for (int layer = 0; layer < model.layers(); ++layer, i += kBlockTensors) {
      layers_.push_back({{p[i], p[i + 1], p[i + 2], p[i + 3], p[i + 4], p[i + 5], p[i + 6],
                          p[i + 7], p[i + 8], p[i + 9], p[i + 10], p[i + 11]},
                         at::empty(kept, options),
                         at::empty(kept, options)});
    }
    norm_weight_ = p[i];
    norm_bias_ = p[i + 1];
  }

  int64_t context() const override { return model_.context(); }
  int64_t seen() const override { return seen_; }
  void Clear() override { seen_ = 0; }

  absl::StatusOr<std::vector<float>> Append(absl::Span<const int32_t> tokens) override {
    const auto count = static_cast<int64_t>(tokens.size());
    if (count < 1 || seen_ + count > model_.context())
      return absl::InvalidArgumentError(absl::StrCat(
          count, " tokens after ", seen_, "; the model's context is ", model_.context()));
    for (const int32_t token : tokens) {
      if (token < 0 || token >= model_.vocabulary())
        return absl::InvalidArgumentError(absl::StrCat(
            "token ", token, " is beyond the model's vocabulary of ", model_.vocabulary()));
    }
    return Guarded("generation",
                   [&]() -> absl::StatusOr<std::vector<float>> { return Run(tokens); });
  }

 private:
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    return at::layer_norm(x, {x.size(-1)}, weight, bias, model_.norm_epsilon());
  }

  std::vector<float> Run(absl::Span<const int32_t> tokens) {
    const c10::AutoGradMode no_gradients(false);
    const auto count = static_cast<int64_t>(tokens.size());
    const at::Tensor ids = at::empty({count}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), ids.data_ptr<int64_t>());
    at::Tensor x =
        at::add(at::embedding(tokens_, ids.to(device_)), positions_.narrow(0, seen_, count));
    for (Layer& layer : layers_) x = Block(x, &layer);
    seen_ += count;
    const at::Tensor last = Norm(x.narrow(0, count - 1, 1), norm_weight_, norm_bias_);
    const at::Tensor logits = at::mm(last, head_.t()).cpu().contiguous();
    const float* data = logits.data_ptr<float>();
    return std::vector<float>(data, data + logits.numel());
  }

  // x: new positions x hidden. As Block of blocks.h, of the new positions alone.
  at::Tensor Block(const at::Tensor& x, Layer* layer) {
    const BlockWeights& w = layer->weights;
    const int64_t count = x.size(0), hidden = x.size(1), width = hidden / model_.heads();
    const at::Tensor qkv =
        at::addmm(w.attention_bias, Norm(x, w.norm1_weight, w.norm1_bias), w.attention_weight)
            .view({count, 3, model_.heads(), width})
            .permute({1, 2, 0, 3});
    layer->keys.narrow(1, seen_, count).copy_(qkv.select(0, 1));
    layer->values.narrow(1, seen_, count).copy_(qkv.select(0, 2));
    const at::Tensor keys = layer->keys.narrow(1, 0, seen_ + count);
    at::Tensor scores = at::bmm(qkv.select(0, 0), keys.transpose(1, 2));
    scores.mul_(1 / std::sqrt(static_cast<double>(width)));
    if (count > 1) {
      scores.add_(at::full({count, seen_ + count}, -std::numeric_limits<double>::infinity(),
                           scores.options())
                      .triu_(seen_ + 1));
    }
    const at::Tensor attended =
        at::bmm(at::softmax(scores, -1), layer->values.narrow(1, 0, seen_ + count))
            .transpose(0, 1)
            .reshape({count, hidden});
    const at::Tensor middle =
        at::add(x, at::addmm(w.projection_bias, attended, w.projection_weight));
    const at::Tensor wide = at::gelu(
        at::addmm(w.wide_bias, Norm(middle, w.norm2_weight, w.norm2_bias), w.wide_weight), "tanh");
    return at::add(middle, at::addmm(w.narrow_bias, wide, w.narrow_weight));
  }

  const ModelSpec model_;
  const c10::Device device_;
  const at::Tensor tokens_;     // vocabulary x hidden
  const at::Tensor positions_;  // context x hidden
  const at::Tensor head_;       // vocabulary x hidden
  at::Tensor norm_weight_, norm_bias_;
  std::vector<Layer> layers_;
  int64_t seen_ = 0;
};

using Places = std::map<std::string, SafetensorsPlace>;

absl::StatusOr<at::Tensor> Load(const ByteSource& file, const Places& places,
                                const std::string& name, const std::vector<int64_t>& shape,
                                c10::Device device) {
  auto it = places.find(name);
  if (it == places.end()) it = places.find(std::string(absl::StripPrefix(name, kPrefix)));
  if (it == places.end())
    return absl::NotFoundError(absl::StrCat("model.safetensors: tensor ", name, " is missing"));
  if (it->second.shape != shape)
    return absl::InvalidArgumentError(absl::StrCat(
        "model.safetensors: tensor ", name, " is [", absl::StrJoin(it->second.shape, ", "),
        "] but config.json says [", absl::StrJoin(shape, ", "), "]"));
  const at::Tensor tensor = at::empty(shape, at::kFloat);
  const absl::Status read =
      ReadFloats(file, it->second, 0,
                 absl::MakeSpan(tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())));
  if (!read.ok()) return Annotate(read, name);
  return tensor.to(device);
}

}  // namespace

absl::StatusOr<std::unique_ptr<generate::Decoder>> MakeGpt2Decoder(const ModelSpec& model,
                                                                   const ByteSource& safetensors,
                                                                   const EngineOptions& options) {
  ASSIGN_OR_RETURN(const Places places, ReadSafetensorsPlaces(safetensors));
  return Guarded("loading the model", [&]() -> absl::StatusOr<std::unique_ptr<generate::Decoder>> {
    ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(options.device));
    SetThreads(options.threads);
    std::vector<at::Tensor> parameters;
    for (const ParameterSpec& spec : StageParameters(model, 0, model.layers())) {
      ASSIGN_OR_RETURN(at::Tensor tensor, Load(safetensors, places, spec.name, spec.shape, device));
      parameters.push_back(std::move(tensor));
    }
    at::Tensor head = IsTied(model) ? parameters.front() : parameters.back();
    if (IsTied(model) && places.count(kHeadTensor) > 0) {
      ASSIGN_OR_RETURN(head, Load(safetensors, places, kHeadTensor, head.sizes().vec(), device));
    }
    return std::make_unique<Gpt2Decoder>(model, device, parameters, head);
  });
}

}  // namespace isthmus::engine
