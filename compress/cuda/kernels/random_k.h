// randomk on device memory: the indices that compress/codecs/sparse.h draws, bit for bit. Plain
// C++; all pointers are device memory. Not tuned. Thread: any, one at a time for a stream.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_RANDOM_K_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_RANDOM_K_H_

#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// The n elements of a sample are cut into `kept` runs; one index is drawn in each.
struct Runs {
  int64_t n = 0;     // under 2^32
  int64_t kept = 0;  // at most n
  uint64_t seed = 0;
  bool scaled = false;  // what is decoded is multiplied by the length of its run
};

// *drawn := draw; values := the elements at the indices of that draw.
Error RandomKEncode(const Runs& runs, uint32_t draw, const void* a, DType dtype, uint32_t* drawn,
                    float* values, Stream stream);
// out := zeros with `values` at the indices of *drawn.
Error RandomKDecode(const Runs& runs, const uint32_t* drawn, const float* values, DType dtype,
                    void* out, Stream stream);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_RANDOM_K_H_
