// Linked where there is no nvcc.
#include "worker/engine/cuda/kernels.h"

namespace isthmus::engine {

bool HaveKernels() { return false; }

const char* AdamWKernel(const Queue&, const AdamWFactors&, const float*, float*, float*, float*,
                        int64_t) {
  return "built without CUDA";
}

const char* AddBf16Kernel(const Queue&, const Bf16Sum*, int64_t) { return "built without CUDA"; }

const char* CrossEntropyKernel(const Queue&, void*, bool, const int64_t*, float*, int64_t, int64_t,
                               float, bool) {
  return "built without CUDA";
}

}  // namespace isthmus::engine
