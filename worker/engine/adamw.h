// AdamW with decoupled weight decay, in plain IEEE arithmetic (no fused multiply-add): the same
// bits on every host, on the CPU and on a GPU. Copies of a parameter on two hosts (the tied
// embedding, replicas) stay equal so. For worker/engine alone. Thread: the owner's.
#ifndef ISTHMUS_WORKER_ENGINE_ADAMW_H_
#define ISTHMUS_WORKER_ENGINE_ADAMW_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace isthmus::engine {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};

struct AdamWStep {
  int64_t step = 1;  // 1-based
  double learning_rate = 0;
  double gradient_scale = 1;
  // Not 0: quantized_adam after its warm-up of so many steps (AC-SGD). What is given for the
  // gradient is the new first moment m; the second, v, stays, with its bias correction:
  //   exp_avg := gradient_scale x m;  parameter by exp_avg and v, as AdamW does
  // but no element moves by more of the learning rate than AdamW can ever move one (MostOfRate).
  int64_t frozen_after = 0;
  // Not 0: the count for what is dealt to slices, whose moments began anew.
  int64_t dealt_step = 0;

  AdamWStep OfDealt() const {
    AdamWStep own = *this;
    own.step = dealt_step;
    return own;
  }
};

// The most that |m| / sqrt(v) can be where both are running means of one gradient:
// (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)). beta1^2 < beta2. A frozen v knows nothing
// of an element whose gradients begin later.
double MostOfRate(const AdamWOptions& options);

struct AdamWState {
  at::Tensor exp_avg;  // shape of the parameter, fp32
  at::Tensor exp_avg_sq;
};

AdamWState ZeroState(const at::Tensor& parameter);

// parameter and state change in place; gradient: contiguous, fp32; undefined: zeros.
void AdamWUpdate(const AdamWOptions& options, const AdamWStep& step, bool decay,
                 const at::Tensor& gradient, at::Tensor parameter, AdamWState* state);

// The same, bit for bit, in operators of LibTorch: what a GPU does without the kernel of cuda/.
void AdamWUpdateInOperators(const AdamWOptions& options, const AdamWStep& step, bool decay,
                            const at::Tensor& gradient, at::Tensor parameter, AdamWState* state);

// before := after + share x (after - before).
void Extrapolate(const at::Tensor& after, double share, at::Tensor before);

// Sum of squares. On the CPU in double, in an order that does not depend on threads; on a GPU in
// fp32, and the caller waits for it.
double SumOfSquares(const at::Tensor& gradient);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_ADAMW_H_
