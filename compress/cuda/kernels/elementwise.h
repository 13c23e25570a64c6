// Sums and differences of whole samples: what error feedback and delta coding over any codec need
// around it. In fp32, as on the CPU, NaNs among them. Plain C++; all pointers are device memory.
// Not tuned. Thread: any, one at a time for a stream.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_ELEMENTWISE_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_ELEMENTWISE_H_

#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// t := x + e.
Error AddResidual(const void* x, DType dtype, const float* e, int64_t n, float* t, Stream stream);
// e := t - r, or zero where that is not finite.
Error KeepResidual(const float* t, const float* r, int64_t n, float* e, Stream stream);

// d := a - m.
Error SubtractBuffer(const void* a, DType dtype, const uint16_t* m, int64_t n, float* d,
                     Stream stream);
// sum := m + d; out := sum, if not null; m := bf16(sum); not_finite := 1 where that is inf or NaN,
// if not null.
Error AddToBuffer(const float* d, int64_t n, uint16_t* m, DType dtype, void* out,
                  uint32_t* not_finite, Stream stream);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_ELEMENTWISE_H_
