// Measures a host: seconds of the forward and backward pass of one fixed transformer block, and
// whether its matrix library is a slow one. The block is the same on every CPU, and on every GPU,
// where it is larger, has bf16 products, the default there, and runs as a stage's passes do, as
// device graphs, so that its launches don't count. With its operations beside the seconds the
// planner can compare all hosts, and scale by proto/model/model_cost.h. Thread: any, while nothing
// else computes; on a GPU it has a stream of its own from then on. Blocks for about `box`.
#ifndef ISTHMUS_WORKER_ENGINE_REFERENCE_BLOCK_H_
#define ISTHMUS_WORKER_ENGINE_REFERENCE_BLOCK_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "worker/engine/engine_options.h"

namespace isthmus::engine {

// 8 samples of 128 positions, hidden 256, 4 heads; on a GPU 1024 positions, hidden 768, 12 heads.
inline constexpr int kReferenceSamples = 8;
ModelSpec ReferenceModel(bool on_gpu);

struct ReferenceBlock {
  double forward_s = 0;  // medians
  double backward_s = 0;
  double forward_flops = 0;  // as BlockCost(ReferenceModel(...), kReferenceSamples) counts them
  double backward_flops = 0;
  double product_flops_per_s = 0;  // of a plain matrix product, 512 x 512 x 512
  std::string warning;             // not empty: what is wrong with this host and the fix
};

// Cancelled: `cancelled`, if given, is asked between two passes, and was true.
absl::StatusOr<ReferenceBlock> MeasureReferenceBlock(
    const EngineOptions& options, absl::Duration box = absl::Seconds(1),
    const std::function<bool()>& cancelled = nullptr);

// Empty, or a sentence naming the package to install: Debian's reference BLAS reaches 3 GFLOP/s,
// OpenBLAS 30 and more a thread.
std::string SlowBlasWarning(double product_flops_per_s);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_REFERENCE_BLOCK_H_
