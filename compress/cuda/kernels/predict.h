// predict on device memory: predictions from rows of means, gains, and the sums that move the means
// (compress/codecs/predict.h, bit for bit). Which row belongs to which token is the host's affair.
// Plain C++; all pointers are device memory unless said otherwise. Not tuned. Thread: any, one at a
// time for a stream.
#ifndef ISTHMUS_COMPRESS_CUDA_KERNELS_PREDICT_H_
#define ISTHMUS_COMPRESS_CUDA_KERNELS_PREDICT_H_

#include "compress/cuda/kernels/kernels.h"

namespace isthmus::compress::cuda {

// The means that make the prediction of a position.
inline constexpr int kMaxContexts = 3;
struct MeanRows {
  const float* token = nullptr;
  const float* position = nullptr;
  const float* context[kMaxContexts] = {};  // null: none
};

// prediction := sum of the rows.
Error PredictRows(const MeanRows* rows, const Matrix& matrix, float* prediction, Stream stream);

// gains: of each position, in units of `unit`, what makes |x - gain x prediction| least.
Error FindGains(const void* x, DType dtype, const float* prediction, const Matrix& matrix,
                float unit, uint8_t* gains, Stream stream);

// prediction *= gain; with x: difference := x - prediction.
Error ApplyGains(const uint8_t* gains, float unit, const Matrix& matrix, float* prediction,
                 const void* x, DType dtype, float* difference, Stream stream);

// y := prediction + d. too_large: of each position, 1 where bits of |y| are over `limit`.
struct RebuildJob {
  const float* prediction = nullptr;
  const float* d = nullptr;
  float* y = nullptr;
  void* out = nullptr;             // := y as dtype, if not null
  uint16_t* m = nullptr;           // := bf16(y), if not null
  uint32_t* not_finite = nullptr;  // := 1 where bf16(y) is inf or NaN, if not null
  uint8_t* too_large = nullptr;
};
Error RebuildRows(const RebuildJob& job, const Matrix& matrix, DType dtype, uint32_t limit,
                  Stream stream);

// One key of one table in a frame: the positions (counted through all samples) that have it, in
// order, are list[begin .. end).
enum class MeanOf : int32_t { kToken, kPosition, kContext };
struct MeanKey {
  MeanOf table = MeanOf::kToken;
  int32_t level = 0;  // of kContext
  int32_t begin = 0, end = 0;
};
// sums[k] := what the rows y of key k leave beyond the means before its table. rows, y: of all
// positions.
Error SumKeys(const MeanKey* keys, int64_t count, const uint32_t* list, const MeanRows* rows,
              const float* y, int64_t hidden, float* sums, Stream stream);
// sum := sums[0] + ... + sums[count - 1], in order.
Error AddSums(const float* sums, int64_t count, int64_t hidden, float* sum, Stream stream);

// mean += rate x (sum / count - mean), or, with `drifts`, mean += rate x (sum / count).
struct MeanMove {
  float* mean = nullptr;
  const float* sum = nullptr;
  float rate = 0;
  float count = 0;
  bool drifts = false;
};
Error MoveMeans(const MeanMove* moves, int64_t count, int64_t hidden, Stream stream);

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_KERNELS_PREDICT_H_
