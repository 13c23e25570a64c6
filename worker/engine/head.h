// The head of a model on a GPU, loss and gradients in one pass and without a graph: logits are
// there for some rows at a time, those of a bf16 head in bf16, and the softmax is computed in fp32
// from each. What a graph would keep of a micro-batch (twice its logits in fp32) never exists.
// For worker/engine alone. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_ENGINE_HEAD_H_
#define ISTHMUS_WORKER_ENGINE_HEAD_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

namespace isthmus::engine {

// Most bytes of logits at once.
inline constexpr int64_t kLogitBytes = int64_t{1} << 30;

struct HeadOptions {
  double scale = 1;       // of the gradients
  bool gradients = true;  // else the loss alone
  int64_t logit_bytes = kLogitBytes;
};

struct HeadResult {
  at::Tensor loss;      // fp64, of the rows' cross-entropies summed, in nats
  at::Tensor gradient;  // of `x`, of its type

  double LossSum() const;  // waits for it
};

// HeadResult::loss, on its way to the host from now on; the call waits for it.
std::function<absl::StatusOr<double>()> LateLoss(const at::Tensor& loss);

// x: rows x hidden; embedding: vocabulary x hidden of the same type, bf16 or fp32; targets: rows,
// int64, each below the vocabulary. Adds the gradient of the embedding to `embedding_gradient`,
// fp32. Everything is queued, nothing waited for.
HeadResult HeadLoss(const at::Tensor& x, const at::Tensor& embedding, const at::Tensor& targets,
                    const HeadOptions& options, at::Tensor embedding_gradient);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_HEAD_H_
