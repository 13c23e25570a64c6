// The engine's own kernels, for what LibTorch would do in many passes over device memory. Plain
// C++: a build without CUDA links kernels_stub.cc, and the engine then takes LibTorch's operators,
// which compute the same (AdamW: to the bit).
//
// Memory is the device's; work is queued on `on.stream`. A call returns null, or what went wrong.
// For worker/engine alone. Thread: any.
#ifndef ISTHMUS_WORKER_ENGINE_CUDA_KERNELS_H_
#define ISTHMUS_WORKER_ENGINE_CUDA_KERNELS_H_

#include <cstdint>

#include "worker/engine/adamw_factors.h"

namespace isthmus::engine {

bool HaveKernels();

struct Queue {
  int device = 0;
  void* stream = nullptr;  // cudaStream_t; null: the default one
};

// adamw.cc's loop, in the same roundings.
const char* AdamWKernel(const Queue& on, const AdamWFactors& factors, const float* gradient,
                        float* weight, float* avg, float* avg_sq, int64_t elements);

// to[i] += from[i], bf16 to fp32; both aligned to 16 bytes.
struct Bf16Sum {
  const void* from;
  float* to;
  int64_t elements;
};
const char* AddBf16Kernel(const Queue& on, const Bf16Sum* sums, int64_t count);

// losses[row] = log(sum(exp(logits[row]))) - logits[row][targets[row]], in fp32. With `gradient`,
// each logit is replaced by (its share of the softmax - 1 at the target) x scale, rounded to the
// type of the logits: bf16, or fp32.
const char* CrossEntropyKernel(const Queue& on, void* logits, bool bf16, const int64_t* targets,
                               float* losses, int64_t rows, int64_t vocabulary, float scale,
                               bool gradient);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_CUDA_KERNELS_H_
