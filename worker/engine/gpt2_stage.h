// A worker::Stage of the GPT-2 family on LibTorch: pre-LN blocks, learned positions, tanh GELU,
// embedding tied to the head. Embeddings on the first stage, final norm, head and loss on the last;
// a plan of one stage has both and no tied exchange. fp32. Of model.family mlp the same with other
// functions and parameters (network.h, mlp.h).
//
// A boundary with an autoencoder in the plan has A on the stage below, which sends x A, and B on
// the stage above, which goes on with (x A) B: weights like others, trained with the loss, with
// names of their own in checkpoints. Where a checkpoint has none of that place and shape, they
// start anew, and that is logged.
//
// Deterministic on the CPU: the same plan gives the same bits run after run, and any cut the same
// forward pass. Gradients of micro-batches add up in the order of the Backward calls. Weight decay:
// on matrices and both embeddings, not on norms and biases (GPT-2's practice). No exception leaves:
// LibTorch's become Internal or, when memory runs out, ResourceExhausted. Thread: the compute
// thread, which also calls MakeGpt2Stage (the number of threads is a setting of that thread).
#ifndef ISTHMUS_WORKER_ENGINE_GPT2_STAGE_H_
#define ISTHMUS_WORKER_ENGINE_GPT2_STAGE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"
#include "worker/engine/engine_options.h"
#include "worker/stage.h"

namespace isthmus::engine {

// Stage `stage` of the plan with the initial weights of the job's seed. InvalidArgument for a plan
// that makes no sense, FailedPrecondition when the device is not there.
absl::StatusOr<std::unique_ptr<worker::Stage>> MakeGpt2Stage(const Plan& plan, int stage,
                                                             const EngineOptions& options);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_GPT2_STAGE_H_
