// What comes in with a micro-batch: tensors and token ids checked against the model, ids as a
// tensor of the stage's device.
// For worker/engine alone. Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_BATCH_IDS_H_
#define ISTHMUS_WORKER_ENGINE_BATCH_IDS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/stage.h"

namespace isthmus::engine {

// `what`: "tokens", "targets". InvalidArgument names the first id that is none of the model's.
inline absl::Status CheckIds(const worker::MicroBatch& batch, absl::Span<const uint32_t> ids,
                             int32_t vocabulary, absl::string_view what) {
  if (static_cast<int64_t>(ids.size()) != batch.samples * batch.positions) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch ", batch.micro, " has ", ids.size(),
                                                   " ", what, ", expected ", batch.samples, " x ",
                                                   batch.positions));
  }
  const auto beyond = std::find_if(
      ids.begin(), ids.end(), [&](uint32_t id) { return id >= static_cast<uint32_t>(vocabulary); });
  if (beyond == ids.end()) return absl::OkStatus();
  const int64_t at = beyond - ids.begin();
  return absl::InvalidArgumentError(absl::StrCat(
      "micro-batch ", batch.micro, ", sample ", at / batch.positions, ", position ",
      at % batch.positions, ": token ", *beyond, " is beyond model.vocabulary (", vocabulary, ")"));
}

inline std::string Text(const TensorDims& d) {
  return absl::StrCat(d.samples, " x ", d.positions, " x ", d.hidden);
}

inline bool Fits(const worker::Tensor& t, const TensorDims& d) {
  return t.dims.samples == d.samples && t.dims.positions == d.positions &&
         t.dims.hidden == d.hidden &&
         (t.device != nullptr || static_cast<int64_t>(t.data.size()) == d.elements());
}

// samples x positions, int64. To a GPU the copy is queued.
inline at::Tensor IdsOn(c10::Device device, const worker::MicroBatch& batch,
                        absl::Span<const uint32_t> ids) {
  const at::Tensor host =
      at::empty({batch.samples, batch.positions},
                at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda()));
  std::copy(ids.begin(), ids.end(), host.data_ptr<int64_t>());
  return host.to(device, at::kLong, /*non_blocking=*/true);
}

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_BATCH_IDS_H_
