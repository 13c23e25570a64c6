// Token ids of a micro-batch as a tensor of the stage's device.
// For worker/engine alone. Thread: pure functions.
#ifndef ISTHMUS_WORKER_ENGINE_BATCH_IDS_H_
#define ISTHMUS_WORKER_ENGINE_BATCH_IDS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/stage.h"

namespace isthmus::engine {

// samples x ids of each, int64. To a GPU the copy is queued.
inline at::Tensor IdsOn(c10::Device device, const worker::MicroBatch& batch,
                        absl::Span<const uint32_t> ids) {
  const at::Tensor host =
      at::empty({batch.samples, static_cast<int64_t>(ids.size()) / batch.samples},
                at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda()));
  std::copy(ids.begin(), ids.end(), host.data_ptr<int64_t>());
  return host.to(device, at::kLong, /*non_blocking=*/true);
}

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_BATCH_IDS_H_
