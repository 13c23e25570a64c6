#include "tests/worker/fake_stage.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"
#include "proto/plan/groups.h"
#include "proto/plan/parts.h"

namespace isthmus::worker {
namespace {

constexpr int64_t kPrime = 1021;

int64_t Mod(int64_t x) { return ((x % kPrime) + kPrime) % kPrime; }

// A lossy codec gives fractions: the fake rounds them, and takes what is not finite as 0.
int64_t ToInt(float x) { return std::isfinite(x) ? Mod(std::llround(x)) : 0; }

using Values = std::vector<int64_t>;

struct Parameter {
  Values value, gradient, momentum;
  Values next_value, next_gradient;   // overlapped steps: of the step after the one that ends next
  Values agreed;                      // local steps
  std::vector<float> outer_momentum;  // of the differences
};

class FakeStage : public Stage {
 public:
  FakeStage(const Plan& plan, int rank, StageHook hook)
      : hook_(std::move(hook)),
        rank_(rank),
        step_(plan.start_step()),
        hidden_(plan.job().model().hidden()),
        vocabulary_(plan.job().model().vocabulary()),
        first_(plan.ranks(rank).first_layer() == 0),
        last_(plan.ranks(rank).end_layer() == plan.job().model().layers()) {
    const uint64_t seed = plan.job().seed();
    if (first_ || last_) Add("wte", vocabulary_ * hidden_, seed);
    for (int l = plan.ranks(rank).first_layer(); l < plan.ranks(rank).end_layer(); ++l) {
      layers_.push_back(absl::StrCat("h.", l));
      Add(layers_.back(), hidden_, seed);
    }
    for (const int layer : BucketLayers(FakeLayers(plan, rank), plan, rank))
      cuts_.push_back(layer - plan.ranks(rank).first_layer());
    cuts_.push_back(0);
    layer_ends_ = EndsOf(FakeLayers(plan, rank));
  }

  absl::StatusOr<ForwardResult> Forward(const MicroBatch& batch, Tensor input) override {
    ASSIGN_OR_RETURN(const StageFault fault, Hook("forward"));
    const int64_t rows = batch.samples * batch.positions;
    Stash stash;
    stash.dims = {batch.samples, batch.positions, hidden_};
    stash.scale = std::llround(1 / batch.loss_scale);
    stash.tokens.assign(batch.tokens.begin(), batch.tokens.end());
    stash.targets.assign(batch.targets.begin(), batch.targets.end());
    const bool next = overlaps_ && (batch.ahead || !batch.train);
    Values Parameter::*const value = next ? &Parameter::next_value : &Parameter::value;
    stash.ends_with = settled_ + (next ? 1 : 0);
    Values x(rows * hidden_);
    if (!first_ && static_cast<int64_t>(input.data.size()) != rows * hidden_)
      return absl::InternalError("fake: input of a wrong size");
    for (int64_t i = 0; i < rows * hidden_; ++i) {
      x[i] = first_ ? (params_["wte"].*value)[stash.tokens[i / hidden_] * hidden_ + i % hidden_]
                    : ToInt(input.data[i]);
    }
    for (const std::string& name : layers_) {
      stash.inputs.push_back(x);
      const Values& w = params_[name].*value;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t* in = &stash.inputs.back()[r * hidden_];
        for (int64_t h = 0; h < hidden_; ++h)
          x[r * hidden_ + h] = Mod(in[h] * w[h] + in[(h + 1) % hidden_]);
      }
    }
    ForwardResult result;
    if (last_) {
      const Values& wte = params_["wte"].*value;
      for (int64_t r = 0; r < rows; ++r) {
        int64_t out = 0;
        for (int64_t h = 0; h < hidden_; ++h)
          out = Mod(out + x[r * hidden_ + h] * wte[stash.targets[r] * hidden_ + h]);
        result.loss_sum += static_cast<double>(out) / 1024;
      }
      if (fault.loss_is_nan) result.loss_sum = std::numeric_limits<double>::quiet_NaN();
      stash.inputs.push_back(x);
    } else {
      result.activation = ToTensor(x, stash.dims);
    }
    if (batch.train) stashes_[batch.micro] = std::move(stash);
    return result;
  }

  absl::StatusOr<Tensor> Backward(int32_t micro, Tensor gradient) override {
    for (size_t piece = 0; piece < cuts_.size(); ++piece) {
      ASSIGN_OR_RETURN(gradient,
                       BackwardPiece(micro, static_cast<int>(piece), std::move(gradient)));
    }
    return gradient;
  }

  absl::StatusOr<Tensor> BackwardPiece(int32_t micro, int piece, Tensor gradient) override {
    if (piece == 0) RETURN_IF_ERROR(Hook("backward").status());
    const auto found = stashes_.find(micro);
    if (found == stashes_.end() || found->second.pieces++ != piece)
      return absl::InternalError(absl::StrCat("fake: backward of micro ", micro, ", piece ", piece,
                                              " without what comes before"));
    Stash& stash = found->second;
    const int64_t rows = stash.dims.samples * stash.dims.positions;
    Values g = piece > 0 ? std::move(stash.gradient) : Values(rows * hidden_);
    const bool next = stash.ends_with != settled_;
    const auto value = [next](Parameter& p) -> Values& { return next ? p.next_value : p.value; };
    const auto grad = [next](Parameter& p) -> Values& {
      return next ? p.next_gradient : p.gradient;
    };
    if (piece == 0 && last_) {
      Parameter& wte = params_["wte"];
      for (int64_t i = 0; i < rows * hidden_; ++i) {
        const int64_t at = stash.targets[i / hidden_] * hidden_ + i % hidden_;
        g[i] = Mod(stash.scale * value(wte)[at]);
        grad(wte)[at] = Mod(grad(wte)[at] + stash.scale * stash.inputs.back()[i]);
      }
    } else if (piece == 0) {
      if (static_cast<int64_t>(gradient.data.size()) != rows * hidden_)
        return absl::InternalError("fake: gradient of a wrong size");
      for (int64_t i = 0; i < rows * hidden_; ++i) g[i] = ToInt(gradient.data[i]);
    }
    const int top = piece > 0 ? cuts_[piece - 1] : static_cast<int>(layers_.size());
    for (int l = top - 1; l >= cuts_[piece]; --l) {
      Parameter& w = params_[layers_[l]];
      Values below(rows * hidden_);
      for (int64_t i = 0; i < rows * hidden_; ++i) {
        const int64_t h = i % hidden_, row = i - h;
        grad(w)[h] = Mod(grad(w)[h] + g[i] * stash.inputs[l][i]);
        below[i] = Mod(g[i] * value(w)[h] + g[row + (h + hidden_ - 1) % hidden_]);
      }
      g = std::move(below);
    }
    if (piece + 1 < static_cast<int>(cuts_.size())) {
      stash.gradient = std::move(g);
      return Tensor{};
    }
    const Stash whole = std::move(stash);
    stashes_.erase(found);
    if (!first_) return ToTensor(g, whole.dims);
    Values& wte = grad(params_["wte"]);
    for (int64_t i = 0; i < rows * hidden_; ++i) {
      int64_t& sum = wte[whole.tokens[i / hidden_] * hidden_ + i % hidden_];
      sum = Mod(sum + g[i]);
    }
    return Tensor{};
  }

  int64_t Elements(GroupPlan::Tensors set) const override {
    int64_t elements = 0;
    for (const auto& [name, p] : params_) elements += In(name, set) ? p.gradient.size() : 0;
    return elements;
  }
  absl::Status ReadGradient(GroupPlan::Tensors set, int64_t first, absl::Span<float> out) override {
    RETURN_IF_ERROR(Hook("read_gradient").status());
    return ForRange(set, first, out.size(), [&](Parameter& p, size_t i, int64_t at) {
      out[at] = static_cast<float>(p.gradient[i]);
    });
  }
  absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                             absl::Span<const float> in) override {
    RETURN_IF_ERROR(Hook("write_gradient").status());
    return ForRange(set, first, in.size(),
                    [&](Parameter& p, size_t i, int64_t at) { p.gradient[i] = ToInt(in[at]); });
  }

  absl::Status TakeMomentum(GroupPlan::Tensors, int64_t, int64_t, double) override {
    return absl::UnimplementedError("fake: parts of numbers modulo a prime are none");
  }

  absl::Status BeginRounds() override {
    for (auto& [name, p] : params_) {
      p.agreed = p.value;
      p.outer_momentum.resize(p.value.size());
    }
    return absl::OkStatus();
  }
  absl::Status ReadDifference(GroupPlan::Tensors set, int64_t first,
                              absl::Span<float> out) override {
    return ForRange(set, first, out.size(), [&](Parameter& p, size_t i, int64_t at) {
      out[at] = static_cast<float>(p.agreed[i] - p.value[i]);
    });
  }
  std::vector<int64_t> LayerEnds() const override { return layer_ends_; }
  absl::Status ApplyDifference(GroupPlan::Tensors set, int64_t first, absl::Span<const float> d,
                               const OuterStep& step) override {
    return ForRange(set, first, d.size(), [&](Parameter& p, size_t i, int64_t at) {
      float& m = p.outer_momentum[i];
      m = static_cast<float>(step.momentum * m + d[at]);
      p.agreed[i] = ToInt(static_cast<float>(static_cast<double>(p.agreed[i]) -
                                             step.learning_rate * (d[at] + step.momentum * m)));
      p.value[i] = ToInt(static_cast<float>(step.mix * static_cast<double>(p.value[i]) +
                                            (1 - step.mix) * static_cast<double>(p.agreed[i])));
    });
  }
  absl::Status RestoreAgreed(GroupPlan::Tensors set, int64_t first, int64_t size) override {
    return ForRange(set, first, size,
                    [](Parameter& p, size_t i, int64_t) { p.value[i] = p.agreed[i]; });
  }

  absl::Status BeginOverlapped() override {
    if (!stashes_.empty()) return absl::InternalError("fake: a micro-batch is under way");
    for (auto& [name, p] : params_) {
      (overlaps_ ? p.value : p.next_value) = overlaps_ ? p.next_value : p.value;
      p.next_gradient.resize(p.gradient.size());
    }
    overlaps_ = true;
    return absl::OkStatus();
  }

  GradientNorm Norm() override {
    const absl::StatusOr<StageFault> fault = Hook("norm");
    GradientNorm norm;
    norm.finite = fault.ok() && !fault->norm_is_infinite;
    for (const auto& [name, p] : params_) {
      if (name == "wte" && !first_) continue;
      for (int64_t g : p.gradient) norm.sum_squares += static_cast<double>(g * g);
    }
    return norm;
  }

  absl::Status Apply(const OptimizerStep& step) override {
    RETURN_IF_ERROR(Hook("apply").status());
    const int64_t scale = std::llround(step.gradient_scale * 9973),
                  rate = std::llround(step.learning_rate * 1e6);
    for (auto& [name, p] : params_) {
      for (size_t i = 0; i < p.value.size(); ++i) {
        p.momentum[i] = Mod(3 * p.momentum[i] + scale * p.gradient[i]);
        const int64_t before = overlaps_ ? p.next_value[i] : p.value[i];
        p.value[i] = Mod(before + p.momentum[i] + rate + step.step);
      }
    }
    Settle();
    return absl::OkStatus();
  }

  void Discard() override {
    if (overlaps_) {
      for (auto& [name, p] : params_) p.value = p.next_value;
    }
    Settle();
  }

  std::vector<StageTensor> Tensors() const override {
    std::vector<StageTensor> list;
    for (const Stored& stored : All()) list.push_back(stored.tensor);
    return list;
  }
  absl::Status ReadTensor(int i, int64_t first, absl::Span<float> out) override {
    ASSIGN_OR_RETURN(const Stored stored, Range(i, first, out.size()));
    Parameter& p = params_[stored.parameter];
    for (size_t k = 0; k < out.size(); ++k) {
      out[k] = stored.tensor.kind == StageTensor::kOuterMomentum
                   ? p.outer_momentum[first + k]
                   : static_cast<float>((p.*FieldOf(stored))[first + k]);
    }
    return absl::OkStatus();
  }
  absl::Status WriteTensor(int i, int64_t first, absl::Span<const float> in) override {
    ASSIGN_OR_RETURN(const Stored stored, Range(i, first, in.size()));
    Parameter& p = params_[stored.parameter];
    for (size_t k = 0; k < in.size(); ++k) {
      if (stored.tensor.kind == StageTensor::kOuterMomentum) {
        p.outer_momentum[first + k] = in[k];
        continue;
      }
      (p.*FieldOf(stored))[first + k] = ToInt(in[k]);
      if (stored.tensor.weight() && !p.agreed.empty()) p.agreed[first + k] = ToInt(in[k]);
    }
    return absl::OkStatus();
  }

 private:
  struct Stash {
    TensorDims dims;
    int64_t scale = 1;
    std::vector<uint32_t> tokens, targets;
    std::vector<Values> inputs;  // of each layer, and on the last stage of the head
    int64_t ends_with = 0;       // settled_ when its step ends
    int pieces = 0;              // of its backward pass, that are done
    Values gradient;             // between two of them
  };

  void Add(const std::string& name, int64_t size, uint64_t seed) {
    order_.push_back(name);
    Parameter& p = params_[name];
    for (int64_t i = 0; i < size; ++i)
      p.value.push_back(RandomBelow(seed, Hash64(name), i, kPrime));
    p.gradient.resize(size);
    p.momentum.resize(size);
  }

  Values Parameter::*Newest() const {
    return overlaps_ ? &Parameter::next_value : &Parameter::value;
  }

  // The weights of `value` are the newest now.
  void Settle() {
    for (auto& [name, p] : params_) {
      p.gradient.assign(p.gradient.size(), 0);
      if (!overlaps_) continue;
      std::swap(p.value, p.next_value);
      std::swap(p.gradient, p.next_gradient);
    }
    ++step_;
    ++settled_;
  }

  bool In(const std::string& name, GroupPlan::Tensors set) const {
    const bool tied = name == "wte" && first_ != last_;
    return tied == (set == GroupPlan::TIED);
  }

  template <typename Use>
  absl::Status ForRange(GroupPlan::Tensors set, int64_t first, int64_t size, Use use) {
    if (first < 0 || first + size > Elements(set))
      return absl::InvalidArgumentError("fake: a range beyond the elements");
    int64_t element = 0;
    for (const std::string& name : order_) {
      Parameter& p = params_[name];
      if (!In(name, set)) continue;
      for (size_t i = 0; i < p.gradient.size(); ++i, ++element) {
        if (element >= first && element < first + size) use(p, i, element - first);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StageFault> Hook(const std::string& operation) {
    if (hook_ == nullptr) return StageFault{};
    return hook_(rank_, step_, operation);
  }

  static Tensor ToTensor(const Values& values, TensorDims dims) {
    Tensor tensor = Tensor::Zeros(dims);
    for (size_t i = 0; i < values.size(); ++i) tensor.data[i] = static_cast<float>(values[i]);
    return tensor;
  }

  struct Stored {
    StageTensor tensor;
    std::string parameter;
  };
  std::vector<Stored> All() const {
    std::vector<Stored> all;
    const auto add = [&](StageTensor::Kind kind, const std::string& name, const std::string& of) {
      const auto size = static_cast<int64_t>(params_.at(of).value.size());
      all.push_back({{name, {size}, kind, of == "wte" && !first_}, of});
    };
    for (const auto& [name, p] : params_) add(StageTensor::kWeight, name, name);
    for (const auto& [name, p] : params_) {
      add(StageTensor::kMoment, name + ".exp_avg", name);
      if (!p.agreed.empty()) add(StageTensor::kOuterMomentum, OuterMomentumName(name), name);
    }
    return all;
  }
  absl::StatusOr<Stored> Range(int i, int64_t first, int64_t size) const {
    const std::vector<Stored> all = All();
    if (i < 0 || i >= static_cast<int>(all.size()) || first < 0 ||
        first + size > all[i].tensor.elements()) {
      return absl::InvalidArgumentError("fake: a range beyond the tensor");
    }
    return all[i];
  }
  // What is written is of the next step; before the first one both are the same.
  Values Parameter::*FieldOf(const Stored& stored) const {
    return stored.tensor.weight() ? Newest() : &Parameter::momentum;
  }

  const StageHook hook_;
  const int rank_;
  int64_t step_;
  const int64_t hidden_, vocabulary_;
  const bool first_, last_;
  bool overlaps_ = false;
  int64_t settled_ = 0;
  std::vector<std::string> layers_;
  std::vector<int64_t> layer_ends_;
  std::vector<int> cuts_;  // layers: where each piece of a backward pass ends
  std::map<std::string, Parameter> params_;
  std::vector<std::string> order_;  // in a set
  std::map<int32_t, Stash> stashes_;
};

}  // namespace

LayerTensors FakeLayers(const Plan& plan, int rank) {
  const ModelSpec& model = plan.job().model();
  const RankPlan& r = plan.ranks(rank);
  LayerTensors layers(r.end_layer() - r.first_layer(), {{1, 1, model.hidden()}});
  if (Embeds(plan, rank) && HasHead(plan, rank))
    layers[0].insert(layers[0].begin(), {1, model.vocabulary(), model.hidden()});
  return layers;
}

StageFactory FakeStages(StageHook hook) {
  return [hook = std::move(hook)](const Plan& plan,
                                  int rank) -> absl::StatusOr<std::unique_ptr<Stage>> {
    return std::make_unique<FakeStage>(plan, rank, hook);
  };
}

absl::Status FakeCorpus::Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const {
  for (int64_t t = 0; t < context_; ++t) {
    if (tokens != nullptr) tokens[t] = RandomBelow(seed_, id, t, vocabulary_);
    if (targets != nullptr) targets[t] = RandomBelow(seed_, id, t + 1, vocabulary_);
  }
  return absl::OkStatus();
}

}  // namespace isthmus::worker
