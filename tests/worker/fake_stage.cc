#include "tests/worker/fake_stage.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"

namespace isthmus::worker {
namespace {

constexpr int64_t kPrime = 1021;
constexpr float kOuterUnit = 1 << 20;  // of the outer momentum in a checkpoint: whole numbers

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
    RETURN_IF_ERROR(Hook("backward").status());
    const auto found = stashes_.find(micro);
    if (found == stashes_.end())
      return absl::InternalError(
          absl::StrCat("fake: backward of micro ", micro, " without its forward"));
    Stash stash = std::move(found->second);
    stashes_.erase(found);
    const int64_t rows = stash.dims.samples * stash.dims.positions;
    Values g(rows * hidden_);
    const bool next = stash.ends_with != settled_;
    const auto value = [next](Parameter& p) -> Values& { return next ? p.next_value : p.value; };
    const auto grad = [next](Parameter& p) -> Values& {
      return next ? p.next_gradient : p.gradient;
    };
    if (last_) {
      Parameter& wte = params_["wte"];
      for (int64_t i = 0; i < rows * hidden_; ++i) {
        const int64_t at = stash.targets[i / hidden_] * hidden_ + i % hidden_;
        g[i] = Mod(stash.scale * value(wte)[at]);
        grad(wte)[at] = Mod(grad(wte)[at] + stash.scale * stash.inputs.back()[i]);
      }
    } else {
      if (static_cast<int64_t>(gradient.data.size()) != rows * hidden_)
        return absl::InternalError("fake: gradient of a wrong size");
      for (int64_t i = 0; i < rows * hidden_; ++i) g[i] = ToInt(gradient.data[i]);
    }
    for (int l = static_cast<int>(layers_.size()) - 1; l >= 0; --l) {
      Parameter& w = params_[layers_[l]];
      Values below(rows * hidden_);
      for (int64_t i = 0; i < rows * hidden_; ++i) {
        const int64_t h = i % hidden_, row = i - h;
        grad(w)[h] = Mod(grad(w)[h] + g[i] * stash.inputs[l][i]);
        below[i] = Mod(g[i] * value(w)[h] + g[row + (h + hidden_ - 1) % hidden_]);
      }
      g = std::move(below);
    }
    if (!first_) return ToTensor(g, stash.dims);
    Values& wte = grad(params_["wte"]);
    for (int64_t i = 0; i < rows * hidden_; ++i) {
      int64_t& sum = wte[stash.tokens[i / hidden_] * hidden_ + i % hidden_];
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
    return ForRange(set, first, out.size(), [&](Parameter& p, size_t i, int64_t at) {
      out[at] = static_cast<float>(p.gradient[i]);
    });
  }
  absl::Status WriteGradient(GroupPlan::Tensors set, int64_t first,
                             absl::Span<const float> in) override {
    return ForRange(set, first, in.size(),
                    [&](Parameter& p, size_t i, int64_t at) { p.gradient[i] = ToInt(in[at]); });
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
  absl::Status ApplyDifference(GroupPlan::Tensors set, absl::Span<const float> d,
                               const OuterStep& step) override {
    return ForRange(set, 0, d.size(), [&](Parameter& p, size_t i, int64_t at) {
      float& m = p.outer_momentum[i];
      m = static_cast<float>(step.momentum * m + d[at]);
      p.agreed[i] = ToInt(static_cast<float>(static_cast<double>(p.agreed[i]) -
                                             step.learning_rate * (d[at] + step.momentum * m)));
      p.value[i] = p.agreed[i];
    });
  }
  absl::Status RestoreAgreed(GroupPlan::Tensors set) override {
    return ForRange(set, 0, Elements(set),
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

  absl::StatusOr<std::string> ExportWeights() override { return Export("", Newest()); }
  absl::StatusOr<std::string> ExportOptimizer() override {
    std::string text = Export(".exp_avg", &Parameter::momentum);
    for (const auto& [name, p] : params_) {
      if (p.agreed.empty() || (name == "wte" && !first_)) continue;
      absl::StrAppend(&text, OuterMomentumName(name));
      for (float m : p.outer_momentum) absl::StrAppend(&text, " ", std::llround(m * kOuterUnit));
      text += "\n";
    }
    return text;
  }
  absl::StatusOr<std::string> ExportTied() override {
    const auto wte = params_.find("wte");
    if (wte == params_.end() || first_) return std::string();
    std::string text;
    Append("wte", wte->second.*Newest(), &text);
    Append("wte.exp_avg", wte->second.momentum, &text);
    return text;
  }
  std::vector<std::string> TensorNames() const override {
    std::vector<std::string> names;
    for (const auto& [name, p] : params_) names.push_back(name);
    return names;
  }
  absl::Status ImportWeights(absl::string_view text) override {
    RETURN_IF_ERROR(Import(text, "", &Parameter::value));
    for (auto& [name, p] : params_) {
      if (!p.agreed.empty()) p.agreed = p.value;
    }
    return absl::OkStatus();
  }
  absl::Status ImportOptimizer(absl::string_view text) override {
    RETURN_IF_ERROR(Import(text, ".exp_avg", &Parameter::momentum));
    const std::map<std::string, Values> lines = Lines(text);
    for (auto& [name, p] : params_) {
      const auto found = lines.find(OuterMomentumName(name));
      for (size_t i = 0; found != lines.end() && i < p.outer_momentum.size(); ++i)
        p.outer_momentum[i] = static_cast<float>(found->second[i]) / kOuterUnit;
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
  };

  void Add(const std::string& name, int64_t size, uint64_t seed) {
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
    for (auto& [name, p] : params_) {
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

  static void Append(const std::string& name, const Values& values, std::string* text) {
    absl::StrAppend(text, name);
    for (int64_t v : values) absl::StrAppend(text, " ", v);
    *text += "\n";
  }

  std::string Export(const std::string& suffix, Values Parameter::*field) const {
    std::string text;
    for (const auto& [name, p] : params_) {
      if (name == "wte" && !first_) continue;
      Append(name + suffix, p.*field, &text);
    }
    return text;
  }

  static std::map<std::string, Values> Lines(absl::string_view text) {
    std::map<std::string, Values> lines;
    std::istringstream in{std::string(text)};
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      for (int64_t v; words >> v;) lines[name].push_back(v);
    }
    return lines;
  }

  absl::Status Import(absl::string_view text, const std::string& suffix, Values Parameter::*field) {
    const std::map<std::string, Values> lines = Lines(text);
    for (auto& [name, p] : params_) {
      const auto found = lines.find(name + suffix);
      if (found == lines.end())
        return absl::NotFoundError(absl::StrCat("fake: no tensor ", name, suffix));
      p.*field = found->second;
    }
    return absl::OkStatus();
  }

  const StageHook hook_;
  const int rank_;
  int64_t step_;
  const int64_t hidden_, vocabulary_;
  const bool first_, last_;
  bool overlaps_ = false;
  int64_t settled_ = 0;
  std::vector<std::string> layers_;
  std::map<std::string, Parameter> params_;
  std::map<int32_t, Stash> stashes_;
};

}  // namespace

StageFactory FakeStages(StageHook hook) {
  return [hook](const Plan& plan, int rank) -> absl::StatusOr<std::unique_ptr<Stage>> {
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
