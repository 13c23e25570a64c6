// topk on device memory, of each token or of the sample: indices and values bit for bit those of
// compress/codecs/sparse.h. Plain C++; all pointers are device memory. Thread: any, one at a time
// for a stream.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_TOP_K_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_TOP_K_H_

#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// How a set of indices is coded (compress/codecs/index_set.h): a bitmap, or low bits and then high
// bits.
struct IndexFormat {
  int64_t n = 0;     // elements of a sample, under 2^32
  int64_t kept = 0;  // of the sample
  bool bitmap = false;
  int low_bits = 0;
  int64_t first_bytes = 0;   // bitmap, or low bits
  int64_t second_at = 0;     // high bits: byte offset, a multiple of 16
  int64_t second_bytes = 0;  // 0 for a bitmap
};
IndexFormat IndexFormatOf(int64_t n, int64_t kept);

struct TopKJob {
  const void* a = nullptr;
  uint8_t* packed = nullptr;  // zeros; at a multiple of 4; read in whole words of 4
  float* values = nullptr;    // kept of them
};

// The `kept_of_row` largest magnitudes of each row, ties to the lower index. hidden is at most
// kMaxTopKHidden.
inline constexpr int64_t kMaxTopKHidden = 49152;
Error TopKEncode(const Matrix& matrix, int64_t kept_of_row, DType dtype, const TopKJob* jobs,
                 int64_t count, Stream stream);

// The format's `kept` largest magnitudes of the sample. Several passes, not tuned. `scratch`:
// GlobalScratchBytes of device memory.
int64_t GlobalScratchBytes(int64_t n);
Error TopKEncodeGlobal(const IndexFormat& format, DType dtype, const TopKJob& job, void* scratch,
                       Stream stream);

// out := zeros with `values` at the indices. `indices`: scratch, 4 bytes for each value. The set is
// valid: the host has checked it.
Error TopKDecode(const IndexFormat& format, const uint8_t* packed, const float* values,
                 uint32_t* indices, DType dtype, void* out, Stream stream);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_TOP_K_H_
