#include "worker/engine/gpt2_parameters.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/data/data_files.h"
#include "proto/job/job_defaults.h"
#include "proto/model/tensor_names.h"
#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "worker/engine/mlp.h"

namespace isthmus::engine {
namespace {

constexpr double kInitStd = 0.02;

void AddNorm(const std::string& name, int64_t hidden, std::vector<ParameterSpec>* out) {
  out->push_back({name + ".weight", {hidden}, false, 0, 1});
  out->push_back({name + ".bias", {hidden}, false, 0, 0});
}

void AddLinear(const std::string& name, int64_t in, int64_t width, double std,
               std::vector<ParameterSpec>* out) {
  out->push_back({name + ".weight", {in, width}, true, std, 0});
  out->push_back({name + ".bias", {width}, false, 0, 0});
}

// The last weight and the last bias, or the weight alone, of a linear layer that is held in part.
void Deal(const ModelSpec& model, DealtBy by, bool bias, int layer, const LayerSlice& held,
          std::vector<ParameterSpec>* out) {
  for (size_t i = out->size() - 2; i < out->size() - (bias ? 0 : 1); ++i) {
    ParameterSpec& spec = (*out)[i];
    spec.dealt_by = by;
    spec.layer = layer;
    spec.whole = spec.shape;
    spec.indices = DealtIndices(model, by, held);
    spec.shape[spec.axis()] = static_cast<int64_t>(spec.indices.size());
  }
}

// The six parts in the order blocks.h wants them. `held`: null: all of it.
void AddBlock(const ModelSpec& model, int layer, const LayerSlice* held,
              std::vector<ParameterSpec>* out) {
  const auto deal = [&](DealtBy by, bool bias) {
    if (held != nullptr && held->dealt) Deal(model, by, bias, layer, *held, out);
  };
  const int64_t h = model.hidden();
  const double residual_std =
      kInitStd / std::sqrt(2.0 * model.layers());  // GPT-2: two residual projections a layer
  const std::string name = absl::StrCat("transformer.h.", layer);
  AddNorm(name + ".ln_1", h, out);
  AddLinear(name + ".attn.c_attn", h, 3 * h, kInitStd, out);
  deal(DealtBy::kHeadColumns, true);
  AddLinear(name + ".attn.c_proj", h, h, residual_std, out);
  deal(DealtBy::kHeadRows, false);
  AddNorm(name + ".ln_2", h, out);
  AddLinear(name + ".mlp.c_fc", h, 4 * h, kInitStd, out);
  deal(DealtBy::kUnitColumns, true);
  AddLinear(name + ".mlp.c_proj", 4 * h, h, residual_std, out);
  deal(DealtBy::kUnitRows, false);
}

ParameterSpec Boundary(const char* what, int layer, int64_t in, int64_t out) {
  ParameterSpec spec;
  spec.name = absl::StrCat(kOwnTensorPrefix, "boundary.", layer, ".", what, ".weight");
  spec.shape = {in, out};
  spec.decay = true;
  spec.init_std = std::sqrt(2.0 / static_cast<double>(in + out));
  return spec;
}

// Element `i` of what is held, as one of the whole parameter.
int64_t IndexInWhole(const ParameterSpec& spec, int64_t i) {
  const int64_t columns = spec.shape.back(), row = i / columns, column = i % columns;
  const bool of_rows = spec.axis() == 0 && spec.shape.size() > 1;
  if (of_rows) return spec.indices[row] * spec.whole.back() + column;
  return (spec.rows.empty() ? row : spec.rows[row]) * spec.whole.back() + spec.indices[column];
}

}  // namespace

std::vector<int64_t> DealtIndices(const ModelSpec& model, DealtBy by, const LayerSlice& held) {
  const bool by_head = by == DealtBy::kHeadColumns || by == DealtBy::kHeadRows;
  if (!by_head) return {held.units.begin(), held.units.end()};
  const int64_t hidden = model.hidden(), width = hidden / model.heads();
  std::vector<int64_t> indices;
  for (int64_t part = 0; part < (by == DealtBy::kHeadColumns ? 3 : 1); ++part) {
    for (const int head : held.heads) {
      for (int64_t k = 0; k < width; ++k) indices.push_back(part * hidden + head * width + k);
    }
  }
  return indices;
}

int ParameterSpec::axis() const {
  const bool columns = dealt_by == DealtBy::kHeadColumns || dealt_by == DealtBy::kUnitColumns;
  return columns ? static_cast<int>(shape.size()) - 1 : 0;
}

int64_t ParameterSpec::elements_an_index() const {
  int64_t n = 1;
  for (const int64_t d : whole) n *= d;
  return n / whole[axis()];
}

int64_t ParameterSpec::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::vector<ParameterSpec> StageParameters(const ModelSpec& model, int first_layer, int end_layer,
                                           const Slice& held) {
  if (IsMlp(model)) return MlpParameters(model, first_layer, end_layer, held);
  const int64_t h = model.hidden();
  const ParameterSpec tokens{kTokenEmbedding, {model.vocabulary(), h}, true, kInitStd, 0};
  std::vector<ParameterSpec> out;
  if (first_layer == 0) {
    out.push_back(tokens);
    out.push_back({kPositionEmbedding, {model.context(), h}, true, kInitStd, 0});
  }
  for (int layer = first_layer; layer < end_layer; ++layer)
    AddBlock(model, layer, held.empty() ? nullptr : &held[layer - first_layer], &out);
  if (end_layer == model.layers()) {
    AddNorm("transformer.ln_f", h, &out);
    if (!IsTied(model)) {
      out.push_back({kHeadTensor, {model.vocabulary(), h}, true, kInitStd, 0});
    } else if (first_layer != 0) {
      out.push_back(tokens);
    }
  }
  return out;
}

ParameterSpec BoundaryEncoder(const ModelSpec& model, int layer, int channels) {
  return Boundary("encoder", layer, model.hidden(), channels);
}

ParameterSpec BoundaryDecoder(const ModelSpec& model, int layer, int channels) {
  return Boundary("decoder", layer, channels, model.hidden());
}

int AutoencoderChannels(const Plan& plan, int rank, bool below) {
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() == LinkPlan::BOUNDARY && (below ? link.upper() : link.lower()) == rank &&
        link.forward().kind() == CodecSpec::AUTOENCODER)
      return link.forward().channels();
  }
  return 0;
}

absl::Status CheckStagePlan(const Plan& plan, int rank) {
  if (rank < 0 || rank >= plan.ranks_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", plan.ranks_size(), " ranks, none is ", rank));
  }
  const ModelSpec& m = plan.job().model();
  if (m.layers() < 1 || m.hidden() < 1 || m.heads() < 1 || m.hidden() % m.heads() != 0 ||
      m.context() < 1 || m.vocabulary() < 2 || m.vocabulary() > kMaxVocabulary ||
      (IsMlp(m) && (m.inputs() < 1 || m.classes() < 2 || m.context() != 1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan's model makes no sense: ", m.ShortDebugString()));
  }
  const RankPlan& r = plan.ranks(rank);
  if (r.first_layer() < 0 || r.end_layer() <= r.first_layer() || r.end_layer() > m.layers()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan's stage ", r.stage(), " holds layers ",
                                                   r.first_layer(), " to ", r.end_layer(), " of ",
                                                   m.layers()));
  }
  RETURN_IF_ERROR(CheckDeal(plan));
  for (const int layer : BucketLayers(OwnShapes(plan, rank), plan, rank)) {
    if (layer <= r.first_layer())
      return absl::InvalidArgumentError(
          absl::StrCat("the plan's stage ", r.stage(), " reduces gradients of less than layer ",
                       layer, ", which is not complete before the others"));
  }
  return absl::OkStatus();
}

void FillInitial(const ParameterSpec& spec, uint64_t seed, float* out) {
  const int64_t n = spec.elements();
  if (spec.init_std == 0) {
    std::fill_n(out, n, spec.init_constant);
    return;
  }
  const uint64_t stream = Hash64(spec.name);
  const double scale = spec.init_std / 65536.0;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<uint64_t>(spec.dealt() ? IndexInWhole(spec, i) : i);
    int32_t sum = 0;
    for (uint64_t k = 0; k < 3; ++k) {
      const uint64_t bits = RandomBits(seed, stream, 3 * at + k);
      sum += static_cast<int32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                  ((bits >> 32) & 0xffff) + (bits >> 48));
    }
    out[i] = static_cast<float>((sum - 12 * 32767.5) * scale);
  }
}

}  // namespace isthmus::engine
