#include "worker/engine/held_slice.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/engine/host_copy.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

// An index on the device of `like`.
at::Tensor IndexOf(const std::vector<int64_t>& indices, const at::Tensor& like) {
  const at::Tensor index = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  if (!indices.empty())
    std::memcpy(index.data_ptr<int64_t>(), indices.data(), indices.size() * sizeof(int64_t));
  return index.to(like.device());
}

// Where `indices` are among `held`, both ascending; all of them are there.
std::vector<int64_t> Among(const std::vector<int64_t>& held, const std::vector<int64_t>& indices) {
  std::vector<int64_t> among;
  for (const int64_t index : indices)
    among.push_back(std::lower_bound(held.begin(), held.end(), index) - held.begin());
  return among;
}

bool Contains(const std::vector<int>& all, const std::vector<int>& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

// The columns or rows that are held, whole.
at::Tensor Held(const Parameter& p) { return p.resting.defined() ? p.resting : p.value.detach(); }

// What was trained goes to what is held.
void Rest(const Parameter& p) {
  if (!p.resting.defined()) return;
  at::Tensor(p.resting).index_copy_(0, IndexOf(p.spec.rows, p.resting), p.value.detach());
}

// What is trained next comes from there.
void TakeUp(const Parameter& p) {
  if (!p.resting.defined()) return;
  p.value.detach().copy_(at::index_select(p.resting, 0, IndexOf(p.spec.rows, p.resting)));
}

// Calls `use(parameter, indices, from)` for each dealt parameter: its indices of `units`, of values
// begin at `from` of a run.
template <typename Use>
void ForDealt(const ModelSpec& model, int first_layer, const Slice& units,
              std::vector<Parameter>* parameters, Use use) {
  int64_t from = 0;
  for (Parameter& p : *parameters) {
    if (!p.spec.dealt()) continue;
    const std::vector<int64_t> indices =
        DealtIndices(model, p.spec.dealt_by, units[p.spec.layer - first_layer]);
    if (indices.empty()) continue;
    use(&p, indices, from);
    from += p.spec.elements_an_index() * static_cast<int64_t>(indices.size());
  }
}

// Values of `in` to these columns or rows of `to`.
void Put(const ParameterSpec& spec, const std::vector<int64_t>& at, const float* in,
         const at::Tensor& to) {
  std::vector<int64_t> shape = to.sizes().vec();
  shape[spec.axis()] = static_cast<int64_t>(at.size());
  const at::Tensor values = at::empty(shape, to.options().requires_grad(false));
  CopyIn(in, values.view({-1}));
  at::Tensor(to).index_copy_(spec.axis(), IndexOf(at, to), values);
}

}  // namespace

HeldSlice::HeldSlice(const Plan& plan, int rank, Versions* versions)
    : model_(plan.job().model()),
      first_layer_(plan.ranks(rank).first_layer()),
      versions_(versions),
      held_(AtStart(plan, rank)),
      deals_(std::any_of(held_.begin(), held_.end(),
                         [](const LayerSlice& layer) { return layer.dealt; })) {
  FillResting(plan.job().seed());
}

void HeldSlice::FillResting(uint64_t seed) {
  for (Parameter& p : versions_->newest().parameters) {
    if (p.spec.rows.empty()) continue;
    ParameterSpec all = p.spec;
    all.rows.clear();
    all.shape[0] = all.whole[0];
    const at::Tensor values = at::empty(all.shape, at::kFloat);
    FillInitial(all, seed, values.data_ptr<float>());
    p.resting = values.to(p.value.device());
  }
}

Slice HeldSlice::AtStart(const Plan& plan, int rank) {
  return Deals(plan) ? SliceOf(plan, rank, RoundOf(plan, plan.start_step())) : Slice();
}

absl::Status HeldSlice::Check(const Slice& units, size_t values) const {
  const int64_t elements = units.size() == held_.size() ? SliceElements(model_, units) : -1;
  if (elements == static_cast<int64_t>(values)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(values, " weights for a slice of ", units.size(),
                                                 " layers that has ", elements));
}

absl::Status HeldSlice::Read(const Slice& units, absl::Span<float> out) {
  RETURN_IF_ERROR(Check(units, out.size()));
  for (size_t l = 0; l < units.size(); ++l) {
    if (!Contains(held_[l].heads, units[l].heads) || !Contains(held_[l].units, units[l].units))
      return absl::InvalidArgumentError("reading units that the slice does not hold");
  }
  return Guarded("reading a slice", [&] {
    ForDealt(model_, first_layer_, units, &versions_->newest().parameters,
             [&](Parameter* p, const std::vector<int64_t>& indices, int64_t from) {
               Rest(*p);
               const at::Tensor value = Held(*p);
               const at::Tensor taken =
                   at::index_select(value, p->spec.axis(),
                                    IndexOf(Among(p->spec.indices, indices), value))
                       .contiguous();
               CopyOut(taken.view({-1}), out.data() + from);
             });
    return absl::OkStatus();
  });
}

absl::Status HeldSlice::Hold(const Slice& next) {
  if (next.size() != held_.size())
    return absl::InvalidArgumentError(absl::StrCat("a slice of ", next.size(), " layers"));
  for (size_t l = 0; l < next.size(); ++l) {
    if (next[l].dealt != held_[l].dealt || next[l].heads.size() != held_[l].heads.size() ||
        next[l].units.size() != held_[l].units.size())
      return absl::InvalidArgumentError("a deal that changes the size of a slice");
  }
  const absl::Status status = Guarded("taking another slice", [&] {
    const c10::AutoGradMode no_gradients(false);
    for (Parameter& p : versions_->newest().parameters) {
      if (!p.spec.dealt()) continue;
      std::vector<int64_t> indices =
          DealtIndices(model_, p.spec.dealt_by, next[p.spec.layer - first_layer_]);
      Rest(p);
      at::Tensor value = Held(p);
      if (together_) {
        value.copy_(at::index_select(p.whole, p.spec.axis(), IndexOf(indices, value)));
      } else {
        std::vector<int64_t> kept;
        std::set_intersection(indices.begin(), indices.end(), p.spec.indices.begin(),
                              p.spec.indices.end(), std::back_inserter(kept));
        const at::Tensor stay =
            at::index_select(value, p.spec.axis(), IndexOf(Among(p.spec.indices, kept), value));
        value.index_copy_(p.spec.axis(), IndexOf(Among(indices, kept), value), stay);
      }
      p.spec.indices = std::move(indices);
      if (!p.spec.rows.empty()) {
        const std::vector<int>& before = next[p.spec.layer - first_layer_ - 1].units;
        p.spec.rows = {before.begin(), before.end()};
        TakeUp(p);
      }
      p.state.exp_avg.zero_();
      p.state.exp_avg_sq.zero_();
    }
    return absl::OkStatus();
  });
  versions_->Changed();
  held_ = next;
  steps_ = 0;
  return status;
}

absl::Status HeldSlice::Write(const Slice& units, absl::Span<const float> in) {
  RETURN_IF_ERROR(Check(units, in.size()));
  for (size_t l = 0; l < units.size(); ++l) {
    if (!Contains(held_[l].heads, units[l].heads) || !Contains(held_[l].units, units[l].units))
      return absl::InvalidArgumentError("writing units that the slice does not hold");
  }
  versions_->Changed();
  return Guarded("writing a slice", [&] {
    const c10::AutoGradMode no_gradients(false);
    ForDealt(model_, first_layer_, units, &versions_->newest().parameters,
             [&](Parameter* p, const std::vector<int64_t>& indices, int64_t from) {
               Rest(*p);
               Put(p->spec, Among(p->spec.indices, indices), in.data() + from, Held(*p));
               TakeUp(*p);
             });
    return absl::OkStatus();
  });
}

absl::Status HeldSlice::BeginWhole() {
  together_ = true;
  return Guarded("the whole model beside a slice", [&] {
    const c10::AutoGradMode no_gradients(false);
    for (Parameter& p : versions_->newest().parameters) {
      if (!p.spec.dealt()) continue;
      p.whole = at::zeros(p.spec.whole, p.value.options().requires_grad(false));
      Rest(p);
      p.whole.index_copy_(p.spec.axis(), IndexOf(p.spec.indices, p.whole), Held(p));
    }
    return absl::OkStatus();
  });
}

absl::Status HeldSlice::WriteWhole(const Slice& units, absl::Span<const float> in) {
  RETURN_IF_ERROR(Check(units, in.size()));
  if (!together_) return absl::FailedPreconditionError("the whole model is not together");
  return Guarded("writing the whole model", [&] {
    const c10::AutoGradMode no_gradients(false);
    ForDealt(model_, first_layer_, units, &versions_->newest().parameters,
             [&](Parameter* p, const std::vector<int64_t>& indices, int64_t from) {
               Put(p->spec, indices, in.data() + from, p->whole);
             });
    return absl::OkStatus();
  });
}

void HeldSlice::EndWhole() {
  together_ = false;
  for (Parameter& p : versions_->newest().parameters) p.whole = at::Tensor();
}

BlockShape HeldSlice::ShapeOf(int layer, bool whole) const {
  const LayerSlice& held = held_[layer - first_layer_];
  if (whole || !held.dealt) return {model_.heads()};
  const auto heads = static_cast<int64_t>(held.heads.size());
  return {heads, model_.heads() / static_cast<double>(heads), UnitScale(layer, whole)};
}

double HeldSlice::UnitScale(int layer, bool whole) const {
  const LayerSlice& held = held_[layer - first_layer_];
  if (whole || !held.dealt) return 1;
  return UnitsOf(model_) / static_cast<double>(held.units.size());
}

void WriteHeld(int64_t first, absl::Span<const float> in, const Parameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  const bool of_rows = spec.axis() == 0 && spec.shape.size() > 1;
  const int64_t columns = spec.whole.back(), held_columns = spec.shape.back();
  const std::vector<int64_t>& indices = spec.indices;
  const auto before = [&](int64_t index) {
    return std::lower_bound(indices.begin(), indices.end(), index) - indices.begin();
  };
  std::vector<bool> is_held(static_cast<size_t>(spec.whole[spec.axis()]));
  for (const int64_t index : indices) is_held[index] = true;
  // What is held of a range of the whole one lies together: both are in the same order.
  int64_t begin = 0;
  if (of_rows) {
    const int64_t row = first / columns;
    begin = before(row) * columns + (is_held[row] ? first % columns : 0);
  } else {
    begin = first / columns * held_columns + before(first % columns);
  }
  std::vector<float> values;
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t at = first + static_cast<int64_t>(i);
    if (is_held[of_rows ? at / columns : at % columns]) values.push_back(in[i]);
  }
  if (values.empty()) return;
  Rest(parameter);
  CopyIn(values.data(),
         Held(parameter).view({-1}).narrow(0, begin, static_cast<int64_t>(values.size())));
  TakeUp(parameter);
}

}  // namespace isthmus::engine
