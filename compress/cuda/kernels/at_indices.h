// Elements of a sample at given indices, on device memory, as compress/codecs/sparse.h gathers and
// scatters them. Plain C++; all pointers are device memory. Not tuned. Thread: any, one at a time
// for a stream.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_AT_INDICES_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_AT_INDICES_H_

#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// Of a sample of n elements, under 2^32.
struct Selected {
  const uint32_t* indices = nullptr;  // in order, none twice, each under n
  int64_t kept = 0;                   // of them
  int64_t n = 0;
};

// values := the selected elements.
Error GatherAt(const Selected& selected, const void* a, DType dtype, float* values, Stream stream);
// out := zeros with `values` in their stead. `scaled`: each times the length of its run
// (kernels/random_k.h: one index in each of `kept` runs).
Error ScatterAt(const Selected& selected, const float* values, bool scaled, DType dtype, void* out,
                Stream stream);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_AT_INDICES_H_
