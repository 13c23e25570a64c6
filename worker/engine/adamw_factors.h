// What does not change from element to element of an AdamW step, in the arithmetic of its loop: on
// the CPU (adamw.cc) and on a GPU (cuda/adamw.cu). Thread: a value.
#ifndef ISTHMUS_WORKER_ENGINE_ADAMW_FACTORS_H_
#define ISTHMUS_WORKER_ENGINE_ADAMW_FACTORS_H_

namespace isthmus::engine {

struct AdamWFactors {
  float gradient_scale, beta1, beta1_rest, beta2, beta2_rest, keep, step_size, root_scale, epsilon;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_ADAMW_FACTORS_H_
