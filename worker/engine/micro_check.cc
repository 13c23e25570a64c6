#include "worker/engine/micro_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/model/family.h"

namespace isthmus::engine {
namespace {

std::string Text(const TensorDims& d) {
  return absl::StrCat(d.samples, " x ", d.positions, " x ", d.hidden);
}

// `a_sample` of them for each sample, all below `most`, which `field` says.
absl::Status CheckIds(const worker::MicroBatch& batch, absl::Span<const uint32_t> ids,
                      int64_t a_sample, int64_t most, absl::string_view what,
                      absl::string_view field) {
  if (static_cast<int64_t>(ids.size()) != batch.samples * a_sample) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch ", batch.micro, " has ", ids.size(),
                                                   " ids (", what, "), expected ", batch.samples,
                                                   " x ", a_sample));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("micro-batch ", batch.micro, ", sample ", i / a_sample, ", position ",
                     i % a_sample, ": ", what, " ", ids[i], " is beyond ", field, " (", most, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMicroBatch(const ModelSpec& model, const worker::MicroBatch& batch) {
  if (batch.samples >= 1 && batch.positions >= 1 && batch.positions <= model.context())
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("micro-batch ", batch.micro, " of ", batch.samples,
                                                 " x ", batch.positions,
                                                 " positions; model.context is ", model.context()));
}

absl::Status CheckInputs(const ModelSpec& model, const worker::MicroBatch& batch) {
  return CheckIds(batch, batch.tokens, IsMlp(model) ? InputsOf(model) : batch.positions,
                  model.vocabulary(), IsMlp(model) ? "value" : "token", "model.vocabulary");
}

absl::Status CheckTargets(const ModelSpec& model, const worker::MicroBatch& batch) {
  return CheckIds(batch, batch.targets, batch.positions, TargetsBelow(model),
                  IsMlp(model) ? "class" : "target",
                  IsMlp(model) ? "model.classes" : "model.vocabulary");
}

absl::Status CheckEdge(absl::string_view what, int32_t micro, const worker::Tensor& tensor,
                       const TensorDims& expected) {
  const TensorDims& d = tensor.dims;
  const bool held =
      tensor.device != nullptr || static_cast<int64_t>(tensor.data.size()) == expected.elements();
  if (held && d.samples == expected.samples && d.positions == expected.positions &&
      d.hidden == expected.hidden)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " of micro-batch ", micro, " is ", Text(d),
                                                 ", expected ", Text(expected)));
}

}  // namespace isthmus::engine
