#include "worker/engine/stage_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"
#include "worker/engine/held_slice.h"
#include "worker/engine/host_copy.h"

namespace isthmus::engine {
namespace {

using worker::StageTensor;

constexpr char kAverage[] = ".exp_avg";
constexpr char kAverageOfSquares[] = ".exp_avg_sq";

const std::vector<int64_t>& ShapeOf(const Parameter& p) {
  return p.spec.dealt() ? p.spec.whole : p.spec.shape;
}

}  // namespace

std::vector<StageTensors::Entry> StageTensors::Entries() const {
  std::vector<Entry> entries;
  const int n = static_cast<int>(parameters.size());
  for (int p = 0; p < n; ++p) entries.push_back({p, StageTensor::kWeight, 0});
  for (int p = 0; p < n; ++p) {
    if (parameters[p].spec.dealt() && !parameters[p].whole.defined()) continue;
    for (const int moment : {0, 1}) entries.push_back({p, StageTensor::kMoment, moment});
    if (rounds.begun()) entries.push_back({p, StageTensor::kOuterMomentum, 0});
  }
  return entries;
}

std::vector<StageTensor> StageTensors::List() const {
  std::vector<StageTensor> list;
  for (const Entry& entry : Entries()) {
    const Parameter& p = parameters[entry.parameter];
    std::string name = p.spec.name;
    if (entry.kind == StageTensor::kMoment)
      name += entry.moment == 0 ? kAverage : kAverageOfSquares;
    if (entry.kind == StageTensor::kOuterMomentum) name = OuterMomentumName(name);
    list.push_back({std::move(name), ShapeOf(p), entry.kind, p.tied && !stores_tied});
  }
  return list;
}

absl::StatusOr<StageTensors::Entry> StageTensors::EntryOf(int i, int64_t first,
                                                          int64_t size) const {
  const std::vector<Entry> entries = Entries();
  if (i < 0 || i >= static_cast<int>(entries.size()))
    return absl::InvalidArgumentError(absl::StrCat("tensor ", i, " of a stage"));
  int64_t elements = 1;
  for (const int64_t n : ShapeOf(parameters[entries[i].parameter])) elements *= n;
  if (first < 0 || size < 0 || first > elements - size) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements ", first, " to ", first + size, " of ", elements));
  }
  return entries[i];
}

at::Tensor StageTensors::Values(const Entry& entry) const {
  const Parameter& p = parameters[entry.parameter];
  if (entry.kind == StageTensor::kOuterMomentum) return rounds.Momentum(entry.parameter);
  if (entry.kind == StageTensor::kWeight) return p.value.detach();
  return entry.moment == 0 ? p.state.exp_avg : p.state.exp_avg_sq;
}

absl::Status StageTensors::Read(int i, int64_t first, absl::Span<float> out) const {
  const auto size = static_cast<int64_t>(out.size());
  ASSIGN_OR_RETURN(const Entry entry, EntryOf(i, first, size));
  const Parameter& p = parameters[entry.parameter];
  at::Tensor values;
  if (!p.spec.dealt()) {
    values = Values(entry);
  } else if (entry.kind != StageTensor::kWeight) {
    std::fill(out.begin(), out.end(), 0.0F);  // a deal drops them
    return absl::OkStatus();
  } else if (p.whole.defined()) {
    values = p.whole;
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat(p.spec.name, ": the stage holds a slice of it"));
  }
  CopyOut(values.view({-1}).narrow(0, first, size), out.data());
  return absl::OkStatus();
}

absl::Status StageTensors::Write(int i, int64_t first, absl::Span<const float> in,
                                 Rounds* agreed) const {
  const auto size = static_cast<int64_t>(in.size());
  ASSIGN_OR_RETURN(const Entry entry, EntryOf(i, first, size));
  const Parameter& p = parameters[entry.parameter];
  if (p.spec.dealt()) {
    if (entry.kind == StageTensor::kWeight) WriteHeld(first, in, p);
    return absl::OkStatus();
  }
  CopyIn(in.data(), Values(entry).view({-1}).narrow(0, first, size));
  if (entry.kind == StageTensor::kWeight) agreed->Agree(entry.parameter, first, in);
  return absl::OkStatus();
}

}  // namespace isthmus::engine
