#include "worker/engine/micro_check.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace isthmus::engine {
namespace {

std::string Text(const TensorDims& d) {
  return absl::StrCat(d.samples, " x ", d.positions, " x ", d.hidden);
}

}  // namespace

absl::Status CheckMicroBatch(const ModelSpec& model, const worker::MicroBatch& batch) {
  if (batch.samples >= 1 && batch.positions >= 1 && batch.positions <= model.context())
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("micro-batch ", batch.micro, " of ", batch.samples,
                                                 " x ", batch.positions,
                                                 " positions; model.context is ", model.context()));
}

absl::Status CheckIds(const ModelSpec& model, const worker::MicroBatch& batch,
                      absl::Span<const uint32_t> ids, absl::string_view what) {
  if (static_cast<int64_t>(ids.size()) != batch.samples * batch.positions) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch ", batch.micro, " has ", ids.size(),
                                                   " ", what, ", expected ", batch.samples, " x ",
                                                   batch.positions));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < static_cast<uint32_t>(model.vocabulary())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("micro-batch ", batch.micro, ", sample ", i / batch.positions, ", position ",
                     i % batch.positions, ": token ", ids[i], " is beyond model.vocabulary (",
                     model.vocabulary(), ")"));
  }
  return absl::OkStatus();
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
