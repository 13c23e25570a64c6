// PowerSGD's power iteration (compress/codecs/low_rank.h) on device memory, through cuBLAS. Plain
// C++; all pointers are device memory, all matrices fp32.
//
// Sums are added in another order than on the CPU, so factors differ from the CPU's in their last
// bits; the payload's format is the same, and what is decoded differs by rounding only.
// Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_LOW_RANK_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_LOW_RANK_H_

#include <memory>

#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

class LowRank {
 public:
  static constexpr int64_t kMaxRank = 128;
  // `rank`: at most kMaxRank, positions and hidden.
  LowRank(const Matrix& matrix, int64_t rank, uint64_t seed);
  ~LowRank();
  LowRank(const LowRank&) = delete;

  // Bytes of scratch of an encoder: the warm start among it. Zeros before the first Encode, then
  // left alone.
  int64_t StateBytes() const;
  // Where in it the warm start is, rank columns of `hidden`; the number of draws (uint64) is at 0.
  static constexpr int64_t WarmAt() { return 16; }

  // t: positions x hidden. left: positions x rank, orthonormal; right: rank x hidden.
  Error Encode(const float* t, void* state, float* left, float* right, Stream stream);
  // out := left x right.
  Error Decode(const float* left, const float* right, float* out, Stream stream);

 private:
  struct State;
  Error Open(Stream stream);
  State Split(void* state) const;

  const Matrix matrix_;
  const int64_t rank_;
  const uint64_t seed_;
  void* cublas_ = nullptr;  // a cublasHandle_t, made by the first call
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_LOW_RANK_H_
